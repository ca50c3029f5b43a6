"""Rows of tokens.parquet from jobs: one for each choice of an answer, and at least one for each job."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from pipeline.answers.ladder import Rebuilder
from pipeline.answers.lines import Job
from pipeline.answers.prompts import NO_HABITS, Conversation, PromptHabits, PromptReading, Render, read_prompt, weigh
from pipeline.answers.providers.engines import seams_trimmed_by_default
from pipeline.answers.providers.habits import UNKNOWN, HabitCounts, Habits, add_counts
from pipeline.answers.providers.observation import Observer
from pipeline.answers.readings.call_names import with_names
from pipeline.answers.readings.candidates import PromptState
from pipeline.answers.readings.chat_formats import Thinking, thinking_after
from pipeline.answers.rebuilt_answer import RebuiltAnswer
from pipeline.answers.rungs.returned_ids import as_ids, impossible
from pipeline.answers.segmented_ids import EncodedTexts, Span, pack
from pipeline.core.errors import InputError
from pipeline.formats.completion.body import Reply, parse_body
from pipeline.formats.completion.choices import Answer, Finish
from pipeline.formats.completion.sampled_ids import prompt_ids
from pipeline.formats.completion.usage import Bill
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import Evidence, PromptEvidence, Status
from pipeline.model.rendering import PromptRenderer
from pipeline.model.tokenizer.tokenizer import Tokenizer


class PackedRow(NamedTuple):
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
    prompt_evidence: PromptEvidence | None
    prompt_delta: int | None


class JobPrompt(NamedTuple):
    """The prompt of a job, as far as it is known."""

    ids: bytes = b""
    """Packed ids; empty when they are not known."""
    thinking: Thinking | None = None
    """State in which the prompt leaves the model; None when the prompt is not known."""
    calls_before: int | None = None
    """Tool calls of the conversation so far; None when they are not known."""
    rejects: tuple[str, ...] = ()
    """Codes of why the row is rejected."""
    notes: tuple[str, ...] = ()
    evidence: PromptEvidence | None = None
    """Evidence for the ids; None when they are not known."""
    delta: int | None = None
    """Billed minus rendered tokens, after the reading that the bill supports; None without a bill."""
    flags: tuple[str, ...] = ()
    """Codes of doubts about the ids."""


class _ParsedJob(NamedTuple):
    """A job with its parsed body."""

    job: Job
    reply: Reply
    encoded: list[EncodedTexts]
    """For each answer of the reply."""


class RowMaker:
    """Turns jobs into rows, for one target."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer, *, send_tools: bool) -> None:
        """Take a target; `send_tools` says whether its prompts hold the tools."""
        self._rebuilder = Rebuilder(record, tokenizer)
        self._record = record
        self._tokenizer = tokenizer
        self._send_tools = send_tools
        self._renderer: PromptRenderer | None = None

    def rows(self, jobs: Iterable[Job], habits: Mapping[str | None, Habits]) -> list[PackedRow]:
        """Return the rows of jobs, in order; a job's rows do not depend on the jobs beside it."""
        parsed_jobs = self._parsed([(job, self._reply(job)) for job in jobs])
        return [row for parsed in parsed_jobs for row in self._rows(parsed, habits)]

    def thinking(self, job: Job) -> Thinking | None:
        """Return the state in which the job's prompt leaves the model; None when the prompt is not known."""
        return self._prompt(job, self._reply(job)).thinking

    def habit_counts(
        self, jobs: Iterable[Job], enough: Container[str | None] = ()
    ) -> Iterator[tuple[str | None, HabitCounts]]:
        """Yield what each usable job shows of its provider's habits; jobs of the providers in `enough` are left out."""
        replies = [(job, self._reply(job)) for job in jobs if not job.rejects]
        for parsed in self._parsed([(job, reply) for job, reply in replies if reply.provider not in enough]):
            yield parsed.reply.provider, self._counts(parsed)

    def observe(self, job: Job, counts: dict[str | None, HabitCounts], limit: int) -> None:
        """Add what a job shows to the counts of its provider, unless those have `limit` rows already."""
        enough = [provider for provider, own in counts.items() if own.rows >= limit]
        for provider, shown in self.habit_counts([job], enough):
            add_counts(counts, provider, shown, limit)

    def _parsed(self, replies: Sequence[tuple[Job, Reply]]) -> list[_ParsedJob]:
        encoded = iter(self._rebuilder.encode_texts(answer for _, reply in replies for answer in reply.answers))
        return [_ParsedJob(job, reply, list(islice(encoded, len(reply.answers)))) for job, reply in replies]

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
            first = first._replace(given=(("output_ids", job.output_ids), *first.given))
            return reply._replace(answers=(first, *reply.answers[1:]))
        return reply

    def _rows(self, parsed: _ParsedJob, habits: Mapping[str | None, Habits]) -> Iterator[PackedRow]:
        """Yield the rows of one job, in the order of its choices; the first has the job's id, the others `<id>#<n>`."""
        job, reply, _ = parsed
        own_habits = habits.get(reply.provider, UNKNOWN)
        prompt = self._prompt(job, reply, own_habits.prompts)
        rejects = (*job.rejects, *reply.rejects, *prompt.rejects)
        if rejects or not reply.answers:
            rejected = RebuiltAnswer(
                None, notes=(*reply.notes, *reply.bill.notes), reasons=tuple(dict.fromkeys(rejects))
            )
            yield _row(_RowSource(job, prompt, reply.provider), rejected, reply.bill.tokens)
            return
        for number, (rebuilt, billed) in enumerate(self._rebuilt_answers(parsed, own_habits, prompt)):
            finish_reason = reply.answers[number].finish_reason
            source = _RowSource(job, prompt, reply.provider, number, finish_reason)
            yield _row(source, self._with_call_names(rebuilt), billed)

    def _with_call_names(self, rebuilt: RebuiltAnswer) -> RebuiltAnswer:
        """Add spans for the names of the calls."""
        name = self._rebuilder.context.format.name
        if rebuilt.segmented is None or name is None:
            return rebuilt
        return rebuilt._replace(segmented=with_names(rebuilt.segmented, name, self._tokenizer))

    def _counts(self, parsed: _ParsedJob) -> HabitCounts:
        job, reply, _ = parsed
        counts = HabitCounts()
        prompt = self._prompt(job, reply)
        observer = Observer(self._rebuilder, self._prompt_state(prompt), job.tools, job.bounds)
        if (claim := self._prompt_claim(job, reply)) is not None and prompt.evidence in ("count", "text"):
            supported, refuted = weigh(*claim)
            counts.prompt_support.update(supported)
            counts.prompt_refutation.update(refuted)
            is_explained = any(note.startswith("prompt_reading:") for note in prompt.notes)
            counts.prompt_deltas.update([] if supported or is_explained else [claim[1] - len(claim[0])])
        counts.trimmed.update(seams_trimmed_by_default(job.body))
        counts.templated.update(self._rebuilder.context.format.seams.items())
        bill = reply.bill if len(reply.answers) == 1 else Bill()
        for answer, encoded in zip(reply.answers, parsed.encoded, strict=True):
            if not answer.rejects:
                counts.add(observer.count(answer, bill, encoded))
        return counts

    def _prompt_state(self, prompt: JobPrompt) -> PromptState:
        return PromptState(prompt.thinking or self._rebuilder.context.format.thinking, prompt.calls_before)

    def _rebuilt_answers(
        self, parsed: _ParsedJob, habits: Habits, prompt: JobPrompt
    ) -> list[tuple[RebuiltAnswer, int | None]]:
        """Rebuild each choice; return it with the tokens billed for it.

        Several choices share one bill, which their sum must meet.
        """
        reply = parsed.reply
        prompt_state = self._prompt_state(prompt)

        def rebuilt_with(bills: Iterable[Bill]) -> list[RebuiltAnswer]:
            return [
                self._rebuilder.rebuild(answer, bill, habits, prompt_state, encoded, parsed.job.bounds)
                for answer, bill, encoded in zip(reply.answers, bills, parsed.encoded, strict=True)
            ]

        if len(reply.answers) == 1:
            return [(rebuilt_with([reply.bill])[0], reply.bill.tokens)]
        answers = rebuilt_with([Bill(None, reply.bill.notes)] * len(reply.answers))
        segmented = [answer.segmented for answer in answers if answer.segmented is not None]
        if reply.bill.tokens is None or len(segmented) < len(answers):
            return [(answer, None) for answer in answers]
        shares = [ids.billed(bills_end=habits.bills_end) for ids in segmented]
        delta = reply.bill.tokens - sum(shares)
        note = f"billed_together {reply.bill.tokens} for {len(answers)} choices"
        if delta:
            return [(_with_unmet_bill(answer, note, delta), None) for answer in answers]
        # Rebuild each as if its share had been billed alone: then doubts that a count leaves open are flagged here too.
        answers = rebuilt_with([Bill(share, reply.bill.notes) for share in shares])
        return [(_with_met_bill(answer, note), share) for answer, share in zip(answers, shares, strict=True)]

    def _prompt(self, job: Job, reply: Reply, habits: PromptHabits = NO_HABITS) -> JobPrompt:
        """Return the job's prompt.

        Its ids are those that the engine reports, else the reading of the conversation that the bill supports.
        """
        engine_ids = _engine_prompt_ids(job.body)
        notes: tuple[str, ...] = ()
        if engine_ids is not None and impossible(engine_ids, self._record, self._tokenizer):
            engine_ids, notes = None, ("engine_prompt_ids_impossible",)
        if job.messages is None:
            if engine_ids is None:
                return JobPrompt(notes=(*notes, "prompt_unknown"))
            thinking = thinking_after(engine_ids, self._record)
            return JobPrompt(pack(engine_ids), thinking, None, notes=("prompt_ids_from_engine",), evidence="ids")
        try:
            ids = self._render(job.messages, job.tools if self._send_tools else None)
        except InputError as error:
            return JobPrompt(rejects=("prompt_not_rendered",), notes=(*notes, f"prompt_not_rendered: {error}"))
        if engine_ids is not None:
            notes = ("prompt_ids_differ_from_engine",) if engine_ids != ids else ()
            reading = PromptReading(engine_ids, "ids", None, notes=notes)
        else:
            reading = self._read_prompt(job, ids, reply, habits)
            reading = reading._replace(notes=(*notes, *reading.notes))
        return JobPrompt(
            pack(reading.ids),
            thinking_after(reading.ids, self._record),
            _count_calls(job.messages),
            notes=reading.notes,
            evidence=reading.evidence,
            delta=reading.delta,
            flags=reading.reasons,
        )

    def _read_prompt(self, job: Job, plain: list[int], reply: Reply, habits: PromptHabits) -> PromptReading:
        """Read the conversation as the bill supports it."""
        return read_prompt(plain, reply.usage.prompt, habits, self._reader(reply), self._conversation(job))

    def _prompt_claim(self, job: Job, reply: Reply) -> tuple[list[int], int, Render, Conversation] | None:
        """Return the template's prompt, its bill, and what is needed to read it otherwise; None without a bill."""
        if job.messages is None or not reply.usage.prompt:
            return None
        conversation = self._conversation(job)
        try:
            return self._render(*conversation), reply.usage.prompt, self._reader(reply), conversation
        except InputError:
            return None

    def _conversation(self, job: Job) -> Conversation:
        return job.messages, job.tools if self._send_tools else None, None

    def _reader(self, reply: Reply) -> Render:
        """Return the renderer of a row's readings: an answer that shows reasoning was not asked for in instant mode."""
        may_be_instant = not any(answer.reasoning for answer in reply.answers)

        def render(messages: Any, tools: Any, thinking: bool | None) -> list[int]:
            if thinking is False and not may_be_instant:
                raise InputError("the answer shows reasoning")
            return self._render(messages, tools, thinking)

        return render

    def _render(self, messages: Any, tools: Any, thinking: bool | None = None) -> list[int]:
        if self._renderer is None:
            self._renderer = PromptRenderer(self._record, self._tokenizer)
        return self._renderer.render(messages, tools, thinking=thinking)


def _with_met_bill(answer: RebuiltAnswer, note: str) -> RebuiltAnswer:
    """Return a choice of a reply whose shared bill is met.

    A sum proves a plain reading, but not which of several readings is right.
    """
    answer = answer._replace(notes=(*answer.notes, note))
    if answer.evidence != "count" or answer.plain_delta is not None:
        return answer
    return answer._replace(evidence="text", reasons=tuple(dict.fromkeys((*answer.reasons, "ambiguous_count"))))


def _with_unmet_bill(answer: RebuiltAnswer, note: str, delta: int) -> RebuiltAnswer:
    """Return a choice of a reply whose shared bill is not met."""
    reasons = tuple("count_mismatch" if code == "count_missing" else code for code in answer.reasons)
    return answer._replace(delta=delta, notes=(*answer.notes, note), reasons=reasons)


class _RowSource(NamedTuple):
    """The parts of a row that do not come from rebuilding."""

    job: Job
    prompt: JobPrompt
    provider: str | None
    number: int = 0
    """Of the choice, from 0."""
    finish_reason: str | None = None


def _row(source: _RowSource, rebuilt: RebuiltAnswer, billed: int | None) -> PackedRow:
    job, prompt, provider, number, finish_reason = source
    segmented = rebuilt.segmented
    doubts = (*prompt.flags, *job.flags) if segmented is not None else ()
    reasons = tuple(dict.fromkeys((*rebuilt.reasons, *doubts)))
    status: Status = "reject" if segmented is None else "flag" if reasons else "accept"
    return PackedRow(
        _clean(f"{job.id}#{number}" if number else job.id),
        prompt.ids,
        segmented.ids if segmented else b"",
        segmented.spans if segmented else (),
        rebuilt.evidence if segmented else None,
        rebuilt.delta if segmented else None,
        billed,
        finish_reason,
        provider,
        tuple(map(_clean, (*job.notes, *prompt.notes, *rebuilt.notes))),
        status,
        ", ".join(map(_clean, reasons)) or None,
        prompt.evidence,
        prompt.delta,
    )


def _clean(text: str) -> str:
    """Return text that can be stored: lone surrogates become escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _engine_prompt_ids(body: Any) -> list[int] | None:
    """Return the prompt ids that an engine reports in any of its fields, or None."""
    return next((ids for value in prompt_ids(body) if (ids := as_ids(value)) is not None), None)


def _count_calls(messages: list[Any]) -> int:
    """Count the tool calls of the conversation so far: the index of a call counts through all of it."""
    calls_by_message = [message.get("tool_calls") for message in messages if isinstance(message, dict)]
    return sum(len(calls) for calls in calls_by_message if isinstance(calls, list))
