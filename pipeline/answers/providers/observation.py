"""What an answer shows of its provider: the counts from which `habits.learn` concludes."""

from collections.abc import Iterator
from typing import Any

from pipeline.answers.assemble import Ahead, Built
from pipeline.answers.ladder import Rebuilder
from pipeline.answers.outcome import Outcome
from pipeline.answers.providers.habits import UNKNOWN, Seen, Space, spaces
from pipeline.answers.readings.candidates import Prompted
from pipeline.answers.readings.tool_calls import in_order, keys_in, respaced
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.usage import Bill


class Observer:
    """Looks at the answers of one job, which it rebuilds as if nothing were known of the provider."""

    def __init__(self, rebuilder: Rebuilder, prompted: Prompted, tools: Any, ahead: Ahead) -> None:
        """Take what the prompt leaves behind, the request's tools, unchecked, and the ids of some texts."""
        self._rebuilder = rebuilder
        self._prompted = prompted
        self._tools = tools
        self._ahead = ahead

    def seen(self, answer: Answer, bill: Bill) -> Seen:
        """Count what one answer shows."""
        counts, outcome = Seen(rows=1), self._rebuild(answer, bill)
        reasoning, content = self._apart(answer)
        counts.texts.update(name for name, text in (("reasoning", reasoning), ("content", content)) if text)
        counts.shown.update(set(spaces(reasoning, content)))
        if outcome.built is not None and outcome.evidence in ("ids", "logprobs"):
            emitted, shown = set(self._emitted(outcome.built)), {seam for seam, _ in counts.shown}
            counts.verified = 1
            counts.emitted.update(emitted)
            counts.lost.update(space for space in emitted if space[0] not in shown)
        if answer.finish == "length":
            counts.length_deltas.update(_one_at_most(outcome))
        elif not answer.calls:
            counts.stop_deltas.update(_one_at_most(outcome))
        if answer.calls:
            self._calls(counts, answer, bill, outcome)
        elif (
            bill.tokens is not None
            and answer.finish == "stop"
            and not any(map(self._rebuilder.markers.may_hold, (reasoning, content)))
        ):
            counts.plain_rows = 1
            counts.plain_deltas.update([] if outcome.plain_delta is None else [outcome.plain_delta])
        return counts

    def _rebuild(self, answer: Answer, bill: Bill) -> Outcome:
        return self._rebuilder.rebuild(answer, bill, UNKNOWN, self._prompted, self._ahead)

    def _calls(self, counts: Seen, answer: Answer, bill: Bill, outcome: Outcome) -> None:
        """Count what the calls' arguments show."""
        for call in answer.calls:
            expected = in_order(self._tools, call.name)
            for keys in keys_in(call):
                if list(keys) != sorted(keys):
                    counts.unsorted_keys += 1
                elif not expected:
                    counts.sorted_keys[tuple(map(ascii, keys))] += 1
        other = respaced(answer)
        with_other = None if other is None else self._rebuild(other, bill)
        if other is not None and with_other is not None:
            kept, changed = self._spacings(answer, other, outcome, with_other)
            counts.spaced, counts.respaced = int(kept and not changed), int(changed and not kept)
        if answer.finish == "stop" and bill.tokens is not None:
            counts.call_rows = 1
            counts.call_deltas.update([] if (delta := _call_delta(outcome, with_other)) is None else [delta])

    def _apart(self, answer: Answer) -> tuple[str, str]:
        """Reasoning and content; where both came in `content`, divided at the tag, so that white space beside it counts as shown."""
        close = self._rebuilder.markers.text("think_close")
        if answer.reasoning or not close or close not in answer.content:
            return answer.reasoning, answer.content
        reasoning, _, content = answer.content.partition(close)
        return reasoning.removeprefix(self._rebuilder.markers.text("think_open") or ""), content

    def _spacings(self, answer: Answer, other: Answer, outcome: Outcome, with_other: Outcome) -> tuple[bool, bool]:
        """Whether the arguments may be what the model wrote: as they came, and in the other spacing; by known ids, else by the bill."""
        if outcome.built is None or outcome.evidence not in ("ids", "logprobs"):
            return outcome.plain_delta in (-1, 0), with_other.plain_delta in (-1, 0)
        written = self._text(outcome.built, "call_args")
        first, second = (
            all(call.arguments.encode() in written for call in calls) for calls in (answer.calls, other.calls)
        )
        return first, second

    def _text(self, built: Built, kind: str) -> bytes:
        """All text of one kind."""
        ids = built.tolist()
        return b"".join(
            self._rebuilder.tokenizer.decode_bytes(ids[span.start : span.end])
            for span in built.spans
            if span.kind == kind
        )

    def _emitted(self, built: Built) -> Iterator[Space]:
        """White space at the seams of known ids."""
        reasoning, content = (self._text(built, kind).decode("utf-8", "replace") for kind in ("reasoning", "content"))
        return spaces(reasoning, content)


def _one_at_most(outcome: Outcome) -> list[int]:
    """A difference that an end token explains, or none."""
    return [outcome.plain_delta] if outcome.plain_delta in (-1, 0) else []


def _call_delta(outcome: Outcome, with_other: Outcome | None) -> int | None:
    """Billed minus rebuilt, as `Seen.call_deltas` has it; None where another reading explains the bill."""
    other = None if with_other is None else with_other.plain_delta
    if outcome.evidence == "count" and "tool_section_inside_reasoning" in outcome.reasons:
        return None if other == 0 else -1
    if outcome.plain_delta is None:
        return None
    return min((outcome.plain_delta, other), key=abs) if other is not None else outcome.plain_delta
