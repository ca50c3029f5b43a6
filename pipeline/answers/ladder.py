"""The evidence ladder: returned ids, ids from logprobs, text encoded again that meets the bill, text encoded again."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.answers.providers.habits import Habits
from pipeline.answers.readings.candidates import PromptState
from pipeline.answers.readings.chat_formats import CallIds, Thinking, format_of
from pipeline.answers.readings.endings import INSIDE_CHARACTER, NO_BOUNDS, REPLACEMENT, Bounds, Ending, proven_ending
from pipeline.answers.readings.markers import Markers
from pipeline.answers.readings.tool_calls import FormatContext
from pipeline.answers.rebuilt_answer import RebuiltAnswer
from pipeline.answers.rungs.logprobs import SampledIds, Vocabulary, concatenated, read_logprobs
from pipeline.answers.rungs.recount import Recount
from pipeline.answers.rungs.returned_ids import agrees, as_ids, impossible, spans_of
from pipeline.answers.segmented_ids import EncodedTexts, Encoder, SegmentedIds
from pipeline.core.errors import InputError
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.usage import Bill
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import Evidence
from pipeline.model.tokenizer.tokenizer import Tokenizer

INCOMPLETE = "ids_incomplete"
"""Flag: the server returned fewer ids than it billed, so some of the answer's tokens are not among them."""

_MENDED_BY_IDS = frozenset({"reasoning_not_raw"})
"""Reject codes of an answer that may still be rebuilt: returned ids replace the text that is missing."""


class Rebuilder:
    """Rebuilds the answers of one target."""

    def __init__(self, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self.record = record
        self.tokenizer = tokenizer
        self.markers = Markers(record)
        self.context = FormatContext(self.markers, format_of(record), CallIds(record.tool_id_format))
        self._vocabulary: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """Bytes to ids; built when the first logprobs arrive."""
        if self._vocabulary is None:
            self._vocabulary = Vocabulary(self.record, self.tokenizer)
        return self._vocabulary

    def encode_texts(self, answers: Iterable[Answer]) -> list[EncodedTexts]:
        """Encode the reasoning and the content of many answers at once; return the encoded texts of each answer.

        A text that could spell out a special token is left out, and so are all texts of an answer that brings ids of
        its own. One kind of work after the other keeps the processor's caches warm: a sixth less time than answer by
        answer.

        Raises:
            InputError: a text holds a lone surrogate.
        """
        texts_by_answer = [self._plain_texts(answer) for answer in answers]
        ids = iter(self.tokenizer.encode_flat_batch([text for texts in texts_by_answer for text in texts]))
        return [list(zip(texts, itertools.islice(ids, len(texts)), strict=True)) for texts in texts_by_answer]

    def _plain_texts(self, answer: Answer) -> list[str]:
        if answer.given or answer.logprobs or answer.rejects:
            return []
        return [
            text
            for text in (answer.reasoning, answer.content)
            if text and not self.markers.may_hold(text) and not text.endswith(REPLACEMENT)
        ]

    def rebuild(
        self,
        answer: Answer,
        bill: Bill,
        habits: Habits,
        prompt_state: PromptState,
        encoded: EncodedTexts = (),
        bounds: Bounds = NO_BOUNDS,
    ) -> RebuiltAnswer:
        """Find the best ids that the evidence supports.

        `encoded` holds those texts of the answer that are encoded already; `bounds` are those of the request.
        """
        if answer.rejects and set(answer.rejects) - _MENDED_BY_IDS:
            return RebuiltAnswer(None, notes=(*answer.notes, *bill.notes), reasons=answer.rejects)
        encode = Encoder(self.tokenizer, self.markers.may_hold, encoded)
        notes: list[str] = []
        if bounds.max_tokens is None and bill.tokens == habits.limit:
            bounds = bounds._replace(max_tokens=habits.limit)
        ending = proven_ending(answer, bill, bounds, self.markers)
        if answer.given or answer.logprobs:
            known_ids = _KnownIds(self, answer, ending, bill, habits, prompt_state.thinking, notes)
            if (rebuilt := known_ids.rebuild(encode)) is not None:
                return rebuilt
        try:
            rebuilt = Recount(self.context, prompt_state, bill, habits, encode, notes).rebuild(ending.answer)
        except InputError:
            return RebuiltAnswer(None, notes=tuple(notes), reasons=("text_not_utf8",))
        doubts = (*ending.doubts, *((INCOMPLETE,) if any(note.startswith(INCOMPLETE) for note in notes) else ()))
        return _doubted(rebuilt, doubts) if doubts else rebuilt


@dataclass(slots=True)
class _KnownIds:
    """The upper rungs for one answer: ids that the server knows."""

    rebuilder: Rebuilder
    answer: Answer
    """As the server sent it."""
    ending: Ending
    bill: Bill
    habits: Habits
    thinking: Thinking
    notes: list[str]
    """Shared with the lower rungs, which add theirs."""

    def rebuild(self, encode: Encoder) -> RebuiltAnswer | None:
        """Return the answer by its known ids; None where they do not suffice.

        In that case `encode` has the ids of the texts that logprobs cover.
        """
        for source, value in self.answer.given:
            if (rebuilt := self._from_returned(source, value)) is not None:
                return rebuilt
        if not self.answer.logprobs:
            return None
        parts = read_logprobs(self.answer.logprobs, self.rebuilder.vocabulary)
        if not parts:
            return None
        if (rebuilt := self._from_logprobs(parts)) is None:
            self._use_partly(parts, encode)
        return rebuilt

    def _from_returned(self, source: str, value: object) -> RebuiltAnswer | None:
        """Return the answer by a field that holds its ids (rung `ids`).

        The result is None where the field is not a list of ids, or disagrees with the text.
        """
        ids = as_ids(value)
        if ids is None:
            self.notes.append(f"ids_not_a_list: {source}")
            return None
        if faults := self._impossible(ids):
            where = (f"{code}: {place}" for code, place in faults[:4])
            return RebuiltAnswer(
                None, notes=(*self.notes, *where), reasons=tuple(dict.fromkeys(code for code, _ in faults))
            )
        whole = self._completed(ids)
        segmented = self._agreed(whole)
        if segmented is None:
            self.notes.append(f"ids_disagree_with_text: {source}")
            return None
        if self._missing(segmented):
            self.notes.append(f"{INCOMPLETE}: {source} has {len(ids)} ids, billed {self.bill.tokens}")
            return None
        return self._with_known_ids("ids", segmented, whole, "engine_ids_used", *_added(ids, whole))

    def _from_logprobs(self, parts: list[SampledIds]) -> RebuiltAnswer | None:
        """Return the answer by its logprobs (rung `logprobs`).

        The result is None where an entry leaves a choice of ids, or the entries do not cover the whole answer.
        """
        whole = concatenated(parts)
        sampled = whole.certain()
        if not sampled:
            self.notes.append("logprobs_not_certain")
            return None
        ids = self._completed(sampled)
        segmented = None if self._impossible(ids) or self._unclosed(ids) else self._agreed(ids)
        if segmented is not None and not self._missing(segmented):
            return self._with_known_ids("ids" if whole.explicit else "logprobs", segmented, ids, *_added(sampled, ids))
        self.notes.append("logprobs_do_not_cover_the_answer")
        return None

    def _use_partly(self, parts: list[SampledIds], encode: Encoder) -> None:
        """Give `encode` the ids of the text fields that logprobs cover: all ids of the field are certain there."""
        special = self.rebuilder.tokenizer.special_texts
        ids_by_text: dict[str, set[tuple[int, ...]]] = {}
        for part in parts:
            for is_text, group in itertools.groupby(part.ids, lambda token: token not in special):
                ids = tuple(group)
                certain = tuple(token for token in ids if token is not None)
                if is_text and len(certain) == len(ids) and not self._impossible(certain):
                    text = self.rebuilder.tokenizer.decode_bytes(certain).decode("utf-8", "replace")
                    ids_by_text.setdefault(text, set()).add(certain)
        fields = {self.answer.reasoning, self.answer.content, *(call.arguments for call in self.answer.calls)}
        usable = {
            text: ways
            for text, ways in ids_by_text.items()
            if text in fields and len(ways) == 1 and "\ufffd" not in text
        }
        for text, (ids,) in usable.items():
            encode.set_ids(text, ids)
        if usable:
            self.notes.append("logprobs_partial")

    def _impossible(self, ids: Sequence[int]) -> list[tuple[str, str]]:
        return impossible(ids, self.rebuilder.record, self.rebuilder.tokenizer)

    def _agreed(self, ids: list[int]) -> SegmentedIds | None:
        """Return the ids with their spans, or None when they disagree with the answer's text."""
        segmented = spans_of(ids, self.rebuilder.record, self.rebuilder.markers, self.thinking)
        tokenizer, record = self.rebuilder.tokenizer, self.rebuilder.record
        return segmented if any(agrees(answer, segmented, ids, tokenizer, record) for answer in self._shown()) else None

    def _shown(self) -> Iterator[Answer]:
        """Yield the answer as sent, then with the stop string that the server cut from its text."""
        yield self.answer
        by = self.answer.stopped_by
        if isinstance(by, str):
            field = "content" if self.answer.content or not self.answer.reasoning else "reasoning"
            yield self.answer._replace(**{field: getattr(self.answer, field) + by})

    def _unclosed(self, ids: list[int]) -> bool:
        """Return whether the answer ended by itself without leaving its reasoning.

        The ids of the content alone look like this where the reasoning is empty.
        """
        role = self.rebuilder.record.role_id
        return (
            self.thinking == "open"
            and self.ending.answer.finish == "stop"
            and not {role("think_close"), role("tools_open")} & {*ids}
        )

    def _missing(self, segmented: SegmentedIds) -> bool:
        """Return whether the bill has more tokens than the ids, the provider's habit with the end token considered.

        Some tokens are missing, even if they were only white space.
        """
        return self.bill.tokens is not None and self.bill.tokens > segmented.billed(bills_end=self.habits.bills_end)

    def _completed(self, ids: list[int]) -> list[int]:
        """Return the ids, with the end token added when it alone is missing.

        That is so when the answer stopped by itself, the bill has as many tokens more than the ids as the end token
        costs at this provider, and most of its rows have the same difference.
        """
        end = self.rebuilder.record.role_id("end")
        if end is None or self.ending.answer.finish != "stop" or ids[-1] == end or self.bill.tokens is None:
            return ids
        gap = self.bill.tokens - len(ids)
        usual = gap if self.habits.ids_gap is None else self.habits.ids_gap
        return [*ids, end] if gap == usual == self.habits.bills_end else ids

    def _with_known_ids(
        self, evidence: Evidence, segmented: SegmentedIds, ids: list[int], *notes: str
    ) -> RebuiltAnswer:
        """Return the answer with its known ids; a cut answer, or one without an end token, is flagged all the same."""
        kinds = [span.kind for span in segmented.spans]
        reasons: list[str] = []
        ended = ids[-1] == self.rebuilder.record.role_id("end")
        if self.answer.finish == "length":
            reasons.append(_truncation(kinds))
        elif not ended and self.ending.doubts:
            reasons += [*(code for code in self.ending.doubts if code != INSIDE_CHARACTER), _truncation(kinds)]
        elif not ended:
            reasons.append("no_end_token")
        if "reasoning" in kinds and "think_close" not in kinds and "tools_open" in kinds:
            reasons.append("tool_section_inside_reasoning")
        delta = None if self.bill.tokens is None else self.bill.tokens - len(ids)
        return RebuiltAnswer(segmented, evidence, delta, (*self.notes, *notes, *self.bill.notes), tuple(reasons))


def _doubted(rebuilt: RebuiltAnswer, doubts: tuple[str, ...]) -> RebuiltAnswer:
    """Return the answer with doubts that no count can clear."""
    if rebuilt.segmented is None:
        return rebuilt
    reasons = tuple(dict.fromkeys((*rebuilt.reasons, *doubts)))
    return rebuilt._replace(evidence="text", reasons=reasons, plain_delta=None)


def _added(given: list[int], whole: list[int]) -> list[str]:
    return ["end_token_from_finish_reason"] if len(given) != len(whole) else []


def _truncation(kinds: list[str]) -> str:
    if "call_open" in kinds or "tools_open" in kinds:
        return "truncated_in_tool_call"
    return "truncated_in_content" if "think_close" in kinds or "content" in kinds else "truncated_in_reasoning"
