"""A job to the rows of tokens.parquet that it makes: one for each choice, and always at least one."""

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from pipeline.answers.assemble import Ahead, Span, pack
from pipeline.answers.ladder import Rebuilder
from pipeline.answers.lines import Job
from pipeline.answers.outcome import Outcome
from pipeline.answers.providers.habits import UNKNOWN, Habits, Seen, take_in
from pipeline.answers.providers.observation import Observer
from pipeline.answers.readings.call_names import with_names
from pipeline.answers.readings.candidates import Prompted
from pipeline.answers.readings.chat_formats import Thinking, thinking_after
from pipeline.answers.rungs.returned_ids import as_ids, impossible
from pipeline.core.errors import InputError
from pipeline.formats.completion.body import Reply, parse_body
from pipeline.formats.completion.choices import Answer, Finish
from pipeline.formats.completion.sampled_ids import prompt_ids
from pipeline.formats.completion.usage import Bill
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import Evidence, Status
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.loading import Tokenizer


class Row(NamedTuple):
    """`schema.tokens.TokenRow` with its ids as little-endian uint32 bytes."""

    id: str
    prompt: bytes
    completion: bytes
    spans: tuple[Span, ...]
    evidence: Evidence | None
    count_delta: int | None
    billed_tokens: int | None
    finish_reason: str | None
    provider: str | None
    notes: tuple[str, ...]
    status: Status
    reason: str | None


class Asked(NamedTuple):
    """What the model read, as far as it is known."""

    ids: bytes = b""
    thinking: Thinking | None = None
    calls_before: int | None = None
    rejects: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class RowMaker:
    """Turns jobs into rows, for one target."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer, *, send_tools: bool) -> None:
        self.rebuilder = Rebuilder(record, tokenizer)
        self._record = record
        self.tokenizer = tokenizer
        self._send_tools = send_tools
        self._renderer: PromptRenderer | None = None

    def rows(self, jobs: Iterable[Job], habits: Mapping[str | None, Habits]) -> list[Row]:
        """Rows of some jobs, in order."""
        return [row for rows in self.rows_by_job(jobs, habits) for row in rows]

    def rows_by_job(self, jobs: Iterable[Job], habits: Mapping[str | None, Habits]) -> list[list[Row]]:
        """Rows of each job, at least one; they are the same whatever other jobs stand beside it."""
        replies = [(job, self._reply(job)) for job in jobs]
        ahead = self.rebuilder.ahead(answer for _, reply in replies for answer in reply.answers)
        return [self._rows(job, reply, habits, ahead) for job, reply in replies]

    def _rows(self, job: Job, reply: Reply, habits: Mapping[str | None, Habits], ahead: Ahead) -> list[Row]:
        """Rows of one job, in the order of its choices; the first has the job's id, the others `<id>#<n>`."""
        asked = self._asked(job)
        rejects = (*job.rejects, *reply.rejects, *asked.rejects)
        if rejects or not reply.answers:
            outcome = Outcome(
                None,
                notes=(*job.notes, *asked.notes, *reply.notes, *reply.bill.notes),
                reasons=tuple(dict.fromkeys(rejects)),
            )
            return [_row(job, job.id, asked, reply, None, outcome, reply.bill.tokens)]
        own = habits.get(reply.provider, UNKNOWN)
        outcomes = self._outcomes(reply, own, asked, ahead)
        return [
            _row(
                job,
                job.id if n == 0 else f"{job.id}#{n}",
                asked,
                reply,
                answer,
                self._named(outcome),
                billed,
                (*job.notes, *asked.notes),
            )
            for n, (answer, (outcome, billed)) in enumerate(zip(reply.answers, outcomes, strict=True))
        ]

    def _named(self, outcome: Outcome) -> Outcome:
        """An outcome with spans for the names of its calls."""
        name = self.rebuilder.context.format.name
        if outcome.built is None or name is None:
            return outcome
        return outcome._replace(built=with_names(outcome.built, name, self.tokenizer))

    def thinking(self, job: Job) -> Thinking | None:
        """State in which the job's prompt leaves the model; None when the prompt is not known."""
        return self._asked(job).thinking

    def shown(self, jobs: Iterable[Job], enough: Container[str | None] = ()) -> list[dict[str | None, Seen] | None]:
        """What each job shows of its provider's habits; None where that provider is one of whom enough is known."""
        replies = [(job, Reply() if job.rejects else self._reply(job)) for job in jobs]
        needed = [bool(job.rejects) or reply.provider not in enough for job, reply in replies]
        ahead = self.rebuilder.ahead(
            answer for (_, reply), wanted in zip(replies, needed, strict=True) if wanted for answer in reply.answers
        )
        return [
            self._shown(job, reply, ahead) if wanted else None
            for (job, reply), wanted in zip(replies, needed, strict=True)
        ]

    def observe(self, job: Job, seen: dict[str | None, Seen], limit: int) -> None:
        """Take a job into what is known of its provider's habits, up to so many rows of each provider."""
        enough = [name for name, counts in seen.items() if counts.rows >= limit]
        for shown in self.shown([job], enough):
            take_in(seen, shown or {}, limit)

    def _shown(self, job: Job, reply: Reply, ahead: Ahead) -> dict[str | None, Seen]:
        if job.rejects:
            return {}
        counts, observer = Seen(), Observer(self.rebuilder, self._prompted(self._asked(job)), job.tools, ahead)
        for answer in reply.answers:
            if not answer.rejects:
                counts.take(observer.seen(answer, reply.bill if len(reply.answers) == 1 else Bill()))
        return {reply.provider: counts}

    def _reply(self, job: Job) -> Reply:
        if job.rejects:
            return parse_body(job.body) if isinstance(job.body, dict) else Reply()
        if job.body is None and job.output_ids is not None:
            ids = as_ids(job.output_ids)
            end = self._record.role_id("end")
            finish: Finish = "stop" if ids and ids[-1] == end else "length"
            return Reply(answers=(Answer(0, finish=finish, given=(("output_ids", job.output_ids),), has_text=False),))
        reply = parse_body(job.body)
        if job.output_ids is not None and reply.answers:
            first = reply.answers[0]
            return reply._replace(
                answers=(first._replace(given=(("output_ids", job.output_ids), *first.given)), *reply.answers[1:])
            )
        return reply

    def _prompted(self, asked: Asked) -> Prompted:
        return Prompted(asked.thinking or self.rebuilder.context.format.thinking, asked.calls_before)

    def _outcomes(self, reply: Reply, habits: Habits, asked: Asked, ahead: Ahead) -> list[tuple[Outcome, int | None]]:
        """Outcome of each choice and what was billed for it; several choices share one bill, which their sum must meet."""
        alone = len(reply.answers) == 1
        bill = reply.bill if alone else Bill(None, reply.bill.notes)
        prompted = self._prompted(asked)
        outcomes = [self.rebuilder.rebuild(answer, bill, habits, prompted, ahead) for answer in reply.answers]
        if alone or reply.bill.tokens is None:
            return [(outcome, bill.tokens) for outcome in outcomes]
        if any(outcome.built is None for outcome in outcomes):
            return [(outcome, None) for outcome in outcomes]
        shares = [outcome.built.billed(bills_end=habits.bills_end) for outcome in outcomes if outcome.built is not None]
        delta = reply.bill.tokens - sum(shares)
        note = f"billed_together {reply.bill.tokens} for {len(outcomes)} choices"
        if delta == 0:  # each as if its share had been billed alone: so what a count leaves open is seen here too
            outcomes = [
                self.rebuilder.rebuild(answer, Bill(share, bill.notes), habits, prompted, ahead)
                for answer, share in zip(reply.answers, shares, strict=True)
            ]
            return [(_shared(outcome, note), share) for outcome, share in zip(outcomes, shares, strict=True)]
        return [(_unsettled(outcome, note, delta), None) for outcome in outcomes]

    def _asked(self, job: Job) -> Asked:
        """The prompt's ids: those that the engine reports, else the conversation rendered."""
        engine = _engine_prompt(job.body)
        notes: tuple[str, ...] = ()
        if engine is not None and impossible(engine, self._record, self.tokenizer):
            engine, notes = None, ("engine_prompt_ids_impossible",)
        if job.messages is None:
            if engine is None:
                return Asked(notes=(*notes, "prompt_unknown"))
            return Asked(pack(engine), thinking_after(engine, self._record), None, notes=("prompt_ids_from_engine",))
        try:
            ids = self._render(job.messages, job.tools if self._send_tools else None)
        except InputError as error:
            return Asked(rejects=("prompt_not_rendered",), notes=(*notes, f"prompt_not_rendered: {error}"))
        if engine is not None and engine != ids:
            ids, notes = engine, ("prompt_ids_differ_from_engine",)
        return Asked(pack(ids), thinking_after(ids, self._record), _calls_in(job.messages), notes=notes)

    def _render(self, messages: Any, tools: Any) -> list[int]:
        if self._renderer is None:
            self._renderer = PromptRenderer(self._record, self.tokenizer)
        return self._renderer.render(messages, tools)


def _shared(outcome: Outcome, note: str) -> Outcome:
    """A choice of a reply whose shared bill is met: a sum proves a plain reading, not which of several is meant."""
    outcome = outcome._replace(notes=(*outcome.notes, note))
    if outcome.evidence != "count" or outcome.plain_delta is not None:
        return outcome
    return outcome._replace(evidence="text", reasons=tuple(dict.fromkeys((*outcome.reasons, "ambiguous_count"))))


def _unsettled(outcome: Outcome, note: str, delta: int) -> Outcome:
    """A choice of a reply whose shared bill is not met."""
    reasons = tuple("count_mismatch" if code == "count_missing" else code for code in outcome.reasons)
    return outcome._replace(delta=delta, notes=(*outcome.notes, note), reasons=reasons)


def _row(
    job: Job,
    name: str,
    asked: Asked,
    reply: Reply,
    answer: Answer | None,
    outcome: Outcome,
    billed: int | None,
    notes: tuple[str, ...] = (),
) -> Row:
    built = outcome.built
    reasons = tuple(dict.fromkeys((*outcome.reasons, *(job.flags if built is not None else ()))))
    status: Status = "reject" if built is None else "flag" if reasons else "accept"
    return Row(
        _clean(name),
        asked.ids,
        built.ids if built else b"",
        built.spans if built else (),
        outcome.evidence if built else None,
        outcome.delta if built else None,
        billed,
        answer.finish_reason if answer else None,
        reply.provider,
        tuple(map(_clean, (*notes, *outcome.notes))),
        status,
        ", ".join(map(_clean, reasons)) or None,
    )


def _clean(text: str) -> str:
    """Text that can be stored: lone surrogates are written out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _engine_prompt(body: Any) -> list[int] | None:
    """Prompt ids that the engine reports, wherever it puts them."""
    return next((ids for value in prompt_ids(body) if (ids := as_ids(value)) is not None), None)


def _calls_in(messages: list[Any]) -> int:
    """Tool calls of the conversation so far: a call's index counts through all of it."""
    listed = [message.get("tool_calls") for message in messages if isinstance(message, dict)]
    return sum(len(calls) for calls in listed if isinstance(calls, list))
