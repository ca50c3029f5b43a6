"""Observation of answers: the counts from which the habits of their provider are learned."""

import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from pipeline.answers.ladder import Rebuilder
from pipeline.answers.providers.habits import UNKNOWN, HabitCounts, Space, spaces
from pipeline.answers.readings.candidates import PromptState
from pipeline.answers.readings.endings import Bounds, proven_ending
from pipeline.answers.readings.tool_calls import in_order, keys_in, respaced
from pipeline.answers.rebuilt_answer import RebuiltAnswer
from pipeline.answers.rungs.returned_ids import as_ids
from pipeline.answers.segmented_ids import EncodedTexts, SegmentedIds
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.usage import Bill


class Observer:
    """Counts what the answers of one job show; it rebuilds them as if nothing were known of the provider."""

    def __init__(self, rebuilder: Rebuilder, prompt_state: PromptState, tools: Any, bounds: Bounds) -> None:
        """Take the state that the prompt leaves behind, the request's tools, which are not checked, and its bounds."""
        self._rebuilder = rebuilder
        self._prompt_state = prompt_state
        self._tools = tools
        self._bounds = bounds

    def count(self, answer: Answer, bill: Bill, encoded: EncodedTexts) -> HabitCounts:
        """Count what one answer shows; `encoded` holds those of its texts that are encoded already."""
        cut = answer.finish == "length"
        answer = proven_ending(answer, bill, self._bounds, self._rebuilder.markers).answer
        counts, rebuilt = HabitCounts(rows=1, cut_rows=int(cut)), self._rebuild(answer, bill, encoded)
        reasoning, content = self._apart(answer)
        counts.texts.update(name for name, text in (("reasoning", reasoning), ("content", content)) if text)
        counts.shown.update(set(spaces(reasoning, content)))
        counts.apart = int(bool(answer.reasoning and answer.content) and not answer.calls)
        counts.reasoning_alone = int(
            answer.finish == "stop" and bool(answer.reasoning) and not answer.content and not answer.calls
        )
        if rebuilt.segmented is not None and rebuilt.evidence in ("ids", "logprobs"):
            emitted, shown = set(self._emitted(rebuilt.segmented)), {seam for seam, _ in counts.shown}
            counts.verified = 1
            counts.emitted.update(emitted)
            counts.lost.update(space for space in emitted if space[0] not in shown)
        if answer.finish == "length":
            counts.length_deltas.update(_one_at_most(rebuilt))
        elif not answer.calls:
            counts.stop_deltas.update(deltas := _one_at_most(rebuilt))
            digest = zlib.crc32(f"{answer.reasoning}\0{answer.content}".encode())
            counts.stop_bills.update((bill.tokens, delta, digest) for delta in deltas if bill.tokens is not None)
            self._count_ids(counts, answer, bill)
        if answer.calls:
            self._count_calls(
                counts, answer, rebuilt, self._respaced(answer, bill, encoded), billed=bill.tokens is not None
            )
        elif (
            bill.tokens is not None
            and answer.finish == "stop"
            and not any(map(self._rebuilder.markers.may_hold, (reasoning, content)))
        ):
            counts.plain_rows = 1
            counts.plain_deltas.update([] if rebuilt.plain_delta is None else [rebuilt.plain_delta])
        return counts

    def _count_ids(self, counts: HabitCounts, answer: Answer, bill: Bill) -> None:
        """Count by how much the bill of an answer that ended by itself exceeds returned ids without an end token."""
        end = self._rebuilder.record.role_id("end")
        ids = next((ids for _, value in answer.given if (ids := as_ids(value)) is not None), None)
        if ids is not None and ids[-1] != end and bill.tokens is not None:
            counts.ids_gaps[bill.tokens - len(ids)] = 1

    def _rebuild(self, answer: Answer, bill: Bill, encoded: EncodedTexts) -> RebuiltAnswer:
        return self._rebuilder.rebuild(answer, bill, UNKNOWN, self._prompt_state, encoded)

    def _respaced(self, answer: Answer, bill: Bill, encoded: EncodedTexts) -> "_Respaced | None":
        """Rebuild the answer with its arguments in the other usual spacing; None where there is no other."""
        other = respaced(answer)
        return None if other is None else _Respaced(other, self._rebuild(other, bill, encoded))

    def _count_calls(
        self, counts: HabitCounts, answer: Answer, rebuilt: RebuiltAnswer, other: "_Respaced | None", *, billed: bool
    ) -> None:
        """Count what the arguments of the calls show."""
        for call in answer.calls:
            sorted_by_schema = in_order(self._tools, call.name)
            for keys in keys_in(call):
                if list(keys) != sorted(keys):
                    counts.unsorted_keys += 1
                elif not sorted_by_schema:
                    counts.sorted_keys[keys] += 1
        if other is not None:
            kept, changed = self._spacings(answer, rebuilt, other)
            counts.spaced, counts.respaced = int(kept and not changed), int(changed and not kept)
        if answer.finish == "stop" and billed:
            counts.call_rows = 1
            delta = _call_delta(rebuilt, None if other is None else other.rebuilt.plain_delta)
            counts.call_deltas.update([] if delta is None else [delta])

    def _apart(self, answer: Answer) -> tuple[str, str]:
        """Return reasoning and content.

        Where both came in `content` they are split at the tag: then white space beside it counts as shown.
        """
        close = self._rebuilder.markers.text("think_close")
        if answer.reasoning or not close or close not in answer.content:
            return answer.reasoning, answer.content
        reasoning, _, content = answer.content.partition(close)
        return reasoning.removeprefix(self._rebuilder.markers.text("think_open") or ""), content

    def _spacings(self, answer: Answer, rebuilt: RebuiltAnswer, other: "_Respaced") -> tuple[bool, bool]:
        """Return whether the model may have written the arguments as they came, and in the other spacing.

        Known ids decide; without them the bill does.
        """
        if rebuilt.segmented is None or rebuilt.evidence not in ("ids", "logprobs"):
            return rebuilt.plain_delta in (-1, 0), other.rebuilt.plain_delta in (-1, 0)
        written = self._text(rebuilt.segmented, "call_args")
        as_given, as_respaced = (
            all(call.arguments.encode() in written for call in calls) for calls in (answer.calls, other.answer.calls)
        )
        return as_given, as_respaced

    def _text(self, segmented: SegmentedIds, kind: str) -> bytes:
        """Return the joined text of one kind of span."""
        ids = segmented.tolist()
        return b"".join(
            self._rebuilder.tokenizer.decode_bytes(ids[span.start : span.end])
            for span in segmented.spans
            if span.kind == kind
        )

    def _emitted(self, segmented: SegmentedIds) -> Iterator[Space]:
        """Yield the white space at the seams of known ids."""
        reasoning, content = (
            self._text(segmented, kind).decode("utf-8", "replace") for kind in ("reasoning", "content")
        )
        return spaces(reasoning, content)


class _Respaced(NamedTuple):
    """An answer with its arguments in the other usual spacing, rebuilt."""

    answer: Answer
    rebuilt: RebuiltAnswer


def _one_at_most(rebuilt: RebuiltAnswer) -> list[int]:
    """Return the difference, if an end token explains it, in a list."""
    return [rebuilt.plain_delta] if rebuilt.plain_delta in (-1, 0) else []


def _call_delta(rebuilt: RebuiltAnswer, other_delta: int | None) -> int | None:
    """Return billed minus rebuilt tokens for `HabitCounts.call_deltas`; None where another reading explains the bill.

    `other_delta` is the plain difference in the other spacing of arguments; None where there is none.
    """
    if rebuilt.evidence == "count" and "tool_section_inside_reasoning" in rebuilt.reasons:
        return None if other_delta == 0 else -1
    if rebuilt.plain_delta is None or other_delta is None:
        return rebuilt.plain_delta
    return min((rebuilt.plain_delta, other_delta), key=abs)
