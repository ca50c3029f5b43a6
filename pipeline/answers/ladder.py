"""The evidence ladder: ids that were returned, ids from logprobs, re-encoded text that meets the bill, re-encoded text."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.answers.answer import Answer, Bill
from pipeline.answers.assemble import Built, Encoder, assemble
from pipeline.answers.emitted import agrees, as_ids, impossible, spans_of
from pipeline.answers.formats import CallIds, Thinking, format_of
from pipeline.answers.habits import SEAMS, Habits
from pipeline.answers.logprobs import Found, Vocabulary, ids_of
from pipeline.answers.markers import Markers
from pipeline.answers.readings import Context, Reading, readings
from pipeline.answers.seams import MAX_EXTRA, Change, describe, variants
from pipeline.errors import InputError
from pipeline.schema.target import TargetRecord
from pipeline.schema.tokens import Evidence
from pipeline.tokens import Tokenizer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of one answer."""

    built: Built | None
    """Ids and spans; None when rejected."""
    evidence: Evidence | None = None
    delta: int | None = None
    """Billed minus rebuilt."""
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why the row is flagged or rejected; none for an accepted one."""
    plain_delta: int | None = None
    """Billed minus rebuilt when the answer leaves no choice of reading: what habits are learned from."""


class Rebuilder:
    """Rebuilds answers of one target."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self.record = record
        self.tokenizer = tokenizer
        self.markers = Markers(record)
        self.context = Context(self.markers, format_of(record), CallIds(record.tool_id_format))
        self._vocabulary: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """Bytes to ids; made when the first logprobs are met."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.record, self.tokenizer)
        return self._vocabulary

    def rebuild(self, answer: Answer, bill: Bill, habits: Habits, thinking: Thinking | None = None, calls_before: int | None = None) -> Outcome:
        """Find the best ids that the evidence supports."""
        thinking = thinking or self.context.format.thinking
        notes: list[str] = []
        if set(answer.rejects) - {"reasoning_not_raw"}:
            return Outcome(None, notes=bill.notes, reasons=answer.rejects)
        if answer.given or answer.logprobs is not None:
            for source, value in answer.given:
                if (outcome := self._returned(answer, bill, thinking, source, value, notes)) is not None:
                    return outcome
            if answer.logprobs and (outcome := self._logprobs(answer, bill, habits, thinking, notes)) is not None:
                return outcome
        try:
            return self._rebuilt(answer, bill, habits, thinking, calls_before, notes)
        except InputError:
            return Outcome(None, notes=tuple(notes), reasons=("text_not_utf8",))

    def _returned(self, answer: Answer, bill: Bill, thinking: Thinking, source: str, value: object, notes: list[str]) -> Outcome | None:
        """Rung `ids`."""
        ids = as_ids(value)
        if ids is None:
            notes.append(f"ids_not_a_list: {source}")
            return None
        if faults := impossible(ids, self.record, self.tokenizer):
            return Outcome(None, notes=(*notes, *(f"{code}: {where}" for code, where in faults[:4])), reasons=tuple(dict.fromkeys(code for code, _ in faults)))
        built = spans_of(ids, self.record, self.markers, thinking)
        if not agrees(answer, built, ids, self.tokenizer, self.markers):
            notes.append(f"ids_disagree_with_text: {source}")
            return None
        return self._known("ids", built, ids, answer, bill, (*notes, "engine_ids_used", *bill.notes))

    def _logprobs(self, answer: Answer, bill: Bill, habits: Habits, thinking: Thinking, notes: list[str]) -> Outcome | None:
        """Rung `logprobs`, where the entries cover the whole answer."""
        whole, _ = ids_of(answer.logprobs, self.vocabulary)
        for found in whole:
            for ids in self._completed(found, answer, bill, habits):
                if impossible(ids, self.record, self.tokenizer):
                    continue
                built = spans_of(ids, self.record, self.markers, thinking)
                if agrees(answer, built, ids, self.tokenizer, self.markers):
                    extra = ("end_token_from_finish_reason",) if len(ids) != len(found.ids) else ()
                    return self._known("ids" if found.explicit else "logprobs", built, ids, answer, bill, (*notes, *extra, *bill.notes))
        notes.append("logprobs_do_not_cover_the_answer" if whole else "logprobs_not_certain")
        return None

    def _completed(self, found: Found, answer: Answer, bill: Bill, habits: Habits) -> Iterator[list[int]]:
        """The ids, with the end token added when the answer stopped by itself and only that one is missing."""
        end = self.record.role_id("end")
        if answer.finish == "stop" and end is not None and found.ids[-1:] != [end]:
            missing = bill.tokens == len(found.ids) + 1 or (bill.tokens == len(found.ids) and not habits.bills_end)
            if missing:
                yield [*found.ids, end]
            return
        yield found.ids

    def _known(self, evidence: Evidence, built: Built, ids: list[int], answer: Answer, bill: Bill, notes: tuple[str, ...]) -> Outcome:
        """An outcome whose ids are known; a cut or unended answer is flagged all the same."""
        reasons: list[str] = []
        end = self.record.role_id("end")
        if answer.finish == "length":
            reasons.append(_truncation(built))
        elif ids[-1] != end:
            reasons.append("no_end_token")
        if "tools_open" in self.markers.roles and _tools_in_reasoning(built):
            reasons.append("tool_section_inside_reasoning")
        delta = None if bill.tokens is None else bill.tokens - len(ids)
        return Outcome(built, evidence, delta, notes, tuple(reasons))

    def _rebuilt(self, answer: Answer, bill: Bill, habits: Habits, thinking: Thinking, calls_before: int | None, notes: list[str]) -> Outcome:
        """Rungs `count` and `text`."""
        encode = Encoder(self.tokenizer)
        options = list(readings(answer, self.context, thinking, calls_before))
        first = assemble(options[0].pieces, encode)
        if answer.empty:
            return _rejected(answer, first, bill, notes, ("empty_zero_tokens" if bill.tokens == 0 else "empty_answer",))
        honest = [reading for reading in options if not reading.rejects]
        if answer.rejects or not honest:
            return _rejected(answer, first, bill, notes, options[0].rejects)
        return self._chosen(honest, bill, habits, encode, notes)

    def _chosen(self, options: list[Reading], bill: Bill, habits: Habits, encode: Encoder, notes: list[str]) -> Outcome:
        builts = [assemble(reading.pieces, encode) for reading in options]
        plain = bill.tokens - len(builts[0]) if bill.tokens is not None and len(options) == 1 else None
        if bill.tokens is None:
            return self._outcome("text", options[0], builts[0], bill, habits, notes, ("count_missing",), plain)
        fitting = [n for n, built in enumerate(builts) if self._billed(built, habits) == bill.tokens]
        if len(fitting) == 1:
            chosen, built = options[fitting[0]], builts[fitting[0]]
            if habits.strips and (same := self._same_count(chosen, len(built), habits, encode)):
                return self._outcome("text", chosen, built, bill, habits, [*notes, f"equal_count {same}"], ("edge_whitespace_suspected",), plain)
            return self._outcome("count", chosen, built, bill, habits, notes, (), plain)
        if fitting:
            labels = " / ".join(_label(options[n], options[0]) for n in fitting)
            return self._outcome("text", options[fitting[0]], builts[fitting[0]], bill, habits, [*notes, f"equal_count {labels}"], ("ambiguous_count",), plain)
        return self._mismatched(options[0], builts[0], bill, habits, encode, notes, plain)

    def _mismatched(self, reading: Reading, built: Built, bill: Bill, habits: Habits, encode: Encoder, notes: list[str], plain: int | None) -> Outcome:
        """No reading meets the bill: try white space at the seams; take it only when one way alone does."""
        reasons: tuple[str, ...] = ("count_mismatch",)
        found = self._seams(reading, built, bill, habits, habits.may_strip, encode, enough=2)
        if len(found) == 1:
            candidate, change = found[0]
            return self._outcome("count", reading, candidate, bill, habits, [*notes, describe(change)], (), plain)
        if found or self._seams(reading, built, bill, habits, frozenset(SEAMS), encode, enough=1):
            reasons = (*reasons, "edge_whitespace_suspected")
        return self._outcome("text", reading, built, bill, habits, notes, reasons, plain)

    def _seams(
        self, reading: Reading, built: Built, bill: Bill, habits: Habits, seams: frozenset[str], encode: Encoder, enough: int
    ) -> list[tuple[Built, Change]]:
        """Ways to put white space back at these seams that meet the bill, up to `enough` of them."""
        assert bill.tokens is not None
        if not 0 < bill.tokens - self._billed(built, habits) <= MAX_EXTRA or not seams:
            return []
        candidates = ((assemble(pieces, encode), change) for pieces, change in variants(reading.pieces, seams, self.context.format.seams))
        fitting = ((candidate, change) for candidate, change in candidates if self._billed(candidate, habits) == bill.tokens)
        return list(itertools.islice(fitting, enough))

    def _same_count(self, reading: Reading, length: int, habits: Habits, encode: Encoder) -> str | None:
        """A way to put white space back, at a seam that this provider strips, which costs no token."""
        for pieces, change in variants(reading.pieces, habits.strips, self.context.format.seams):
            if len(assemble(pieces, encode)) == length:
                return describe(change)
        return None

    def _billed(self, built: Built, habits: Habits) -> int:
        ended = bool(built.spans) and built.spans[-1].kind == "end"
        return len(built) - (ended and not habits.bills_end)

    def _outcome(
        self, evidence: Evidence, reading: Reading, built: Built, bill: Bill, habits: Habits, notes: list[str], reasons: tuple[str, ...], plain: int | None
    ) -> Outcome:
        delta = None if bill.tokens is None else bill.tokens - len(built)
        said = [*notes, *bill.notes, *reading.repairs]
        if delta is not None and self._billed(built, habits) != len(built):
            said.append("terminator_not_billed")
        said += self._spelled_out(reading)
        if undecided := {"tool_id_rewritten_by_server"} & set(reading.reasons):
            evidence = "text" if evidence == "count" else evidence
            said += [f"undecided: {code}" for code in undecided]
        return Outcome(built, evidence, delta, tuple(dict.fromkeys(said)), tuple(dict.fromkeys((*reading.reasons, *reasons))), plain)

    def _spelled_out(self, reading: Reading) -> Iterator[str]:
        texts = [piece.text for piece in reading.pieces if piece.token is None and self.markers.may_hold(piece.text)]
        if any(map(self.markers.literals, texts)):
            yield "literal_special_text"
        if any(map(self.markers.look_alikes, texts)):
            yield "marker_like_text"


def _rejected(answer: Answer, first: Built, bill: Bill, notes: list[str], codes: tuple[str, ...]) -> Outcome:
    mismatch = ("count_mismatch",) if answer.rejects and bill.tokens is not None and bill.tokens != len(first) else ()
    return Outcome(None, notes=(*notes, *bill.notes), reasons=tuple(dict.fromkeys((*answer.rejects, *codes, *mismatch))))


def _truncation(built: Built) -> str:
    kinds = [span.kind for span in built.spans]
    if any(kind in ("tools_open", "call_open") for kind in kinds):
        return "truncated_in_tool_call"
    return "truncated_in_content" if "think_close" in kinds or "content" in kinds else "truncated_in_reasoning"


def _tools_in_reasoning(built: Built) -> bool:
    kinds = [span.kind for span in built.spans]
    return "reasoning" in kinds and "think_close" not in kinds and "tools_open" in kinds


def _label(reading: Reading, first: Reading) -> str:
    changed = [p.text for p, q in itertools.zip_longest(reading.pieces, first.pieces) if p is not None and p != q]
    return "+".join(reading.repairs) or "+".join(repr(text[:40]) for text in changed[:2]) or "default"
