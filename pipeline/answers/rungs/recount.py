"""The lower rungs: encode the text again, and let the bill decide between the readings that the format allows."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.answers.providers.habits import SEAMS, WHITE_SPACE, Habits, Spaces
from pipeline.answers.readings.candidates import CUT_AT_MARKER, TRUNCATED, PromptState, Reading, readings
from pipeline.answers.readings.endings import REPLACEMENT
from pipeline.answers.readings.seams import MAX_EXTRA, Change, describe, variants
from pipeline.answers.readings.tool_calls import FormatContext, keys_in, respaced
from pipeline.answers.rebuilt_answer import RebuiltAnswer
from pipeline.answers.segmented_ids import Encoder, SegmentedIds, assemble, unpack
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.usage import Bill
from pipeline.formats.schema.tokens import Evidence

FOLLOWING = ("é", "ж", "中", "語", "م", "한", "ไ", "€", "😀", "🇳", "\u0301", "𝒙")
"""Characters of several bytes and of many kinds. A token of the text before them is certain when it is the same
whichever follows."""

_ANYWHERE: Spaces = dict.fromkeys(SEAMS, WHITE_SPACE)

_TRUNCATIONS = frozenset(TRUNCATED.values())

UNDECIDED = frozenset(
    {
        "tool_id_rewritten_by_server",
        "arguments_not_raw",
        CUT_AT_MARKER,
        "count_unreliable",
        "end_token_unclear",
        "arguments_rewritten_by_server",
        "arguments_sorted_by_server",
    }
)
"""Flags that a count cannot clear: another reading has the same count, or the count itself is in doubt."""


@dataclass(slots=True)
class Recount:
    """Rungs `count` and `text` for one answer.

    Not frozen: one is made for each answer, and a frozen dataclass takes three times as long to make.
    """

    context: FormatContext
    prompt_state: PromptState
    bill: Bill
    habits: Habits
    encode: Encoder
    notes: list[str]

    def rebuild(self, answer: Answer) -> RebuiltAnswer:
        """Return the answer by the only reading that meets the bill; else by the likeliest reading, flagged.

        Raises:
            InputError: a text holds a lone surrogate.

        """
        options = list(self._readings(answer))
        if answer.empty:
            return self._rejected(("empty_zero_tokens" if self.bill.tokens == 0 else "empty_answer",))
        if answer.finish == "length":
            self._keep_certain(options)
        honest = [reading for reading in options if not reading.rejects or self._saved(reading)]
        if answer.rejects or not honest:
            return self._rejected((*answer.rejects, *options[0].rejects, *self._mismatch(answer, options[0])))
        all_segmented = [assemble(reading.pieces, self.encode) for reading in honest]
        gone = [reading for reading in options if reading.rejects and not reading.needs_bill]
        if gone and (rejected := self._ran_on(gone, all_segmented)) is not None:
            return rejected
        return self._chosen(answer, honest, all_segmented, self._plain_delta(answer, honest[0], all_segmented))

    def _saved(self, reading: Reading) -> bool:
        """Return whether a reading that is only honest with the right bill has it.

        The reasoning of a server that never splits it off may hold the content too, unless the text shows the close.
        """
        return (
            reading.needs_bill
            and (self.habits.splits or _splits_at_tag(reading))
            and self._billed(assemble(reading.pieces, self.encode)) == self.bill.tokens
        )

    def _ran_on(self, gone: list[Reading], all_segmented: list[SegmentedIds]) -> RebuiltAnswer | None:
        """Return the rejected answer when only a reading without honest ids meets the bill; else None."""
        if any(self._billed(segmented) == self.bill.tokens for segmented in all_segmented):
            return None
        met = (reading for reading in gone if len(assemble(reading.pieces, self.encode)) == self.bill.tokens)
        return next((self._rejected(reading.rejects) for reading in met), None)

    def _keep_certain(self, options: list[Reading]) -> None:
        """Give a text that breaks off inside a character the ids of the tokens that are certain, and no more."""
        for text in {reading.pieces[-1].text for reading in options if reading.pieces and reading.pieces[-1].text}:
            if text.endswith(REPLACEMENT):
                start = text.rstrip(REPLACEMENT)
                whole = [unpack(self.encode(start + following)) for following in ("", *FOLLOWING)]
                same = [ids[0] for ids in zip(*whole, strict=False) if len(set(ids)) == 1]
                count = next((n for n, ids in enumerate(zip(*whole, strict=False)) if len(set(ids)) > 1), len(same))
                self.encode.set_ids(text, same[:count])

    def _readings(self, answer: Answer) -> Iterator[Reading]:
        """Yield all readings; for a provider that spaces arguments anew, those with the other spacing too."""
        kept = () if answer.calls else self.habits.shows_lines  # with calls some servers strip what they keep otherwise
        yield from readings(answer, self.context, self.prompt_state, self.encode.marked, kept)
        if self.habits.respaces and (other := respaced(answer)) is not None:
            for reading in readings(other, self.context, self.prompt_state, self.encode.marked, kept):
                yield reading._replace(repairs=(*reading.repairs, "respaced_arguments"))

    def _plain_delta(self, answer: Answer, first: Reading, all_segmented: list[SegmentedIds]) -> int | None:
        """Return billed minus rebuilt tokens, when only the provider's way of counting explains a difference of one.

        The result is None otherwise.
        """
        if (
            self.bill.tokens is None
            or first.repairs
            or first.needs_bill
            or not _TRUNCATIONS.issuperset(first.reasons)
            or answer.finish == "unknown"
        ):
            return None
        explained = any(len(segmented) == self.bill.tokens for segmented in all_segmented[1:])
        return None if explained else self.bill.tokens - len(all_segmented[0])

    def _chosen(
        self, answer: Answer, options: list[Reading], all_segmented: list[SegmentedIds], plain: int | None
    ) -> RebuiltAnswer:
        if self.bill.tokens is None:
            return self._made("text", options[0], all_segmented[0], plain, "count_missing")
        fitting = [n for n, segmented in enumerate(all_segmented) if self._billed(segmented) == self.bill.tokens]
        if not fitting:
            return self._mismatched(answer, options[0], all_segmented[0], plain)
        chosen, segmented = options[fitting[0]], all_segmented[fitting[0]]
        if len(fitting) > 1:
            labels = " / ".join(_label(options[n], options[0]) for n in fitting)
            return self._made("text", chosen, segmented, plain, "ambiguous_count", note=f"equal_count {labels}")
        if any(REPLACEMENT in piece.text for piece in chosen.pieces):
            return self._made("text", chosen, segmented, plain, "replacement_character")
        if self.habits.strips and (same := self._same_count(options)):
            return self._made("text", chosen, segmented, plain, "edge_whitespace_suspected", note=f"equal_count {same}")
        return self._made("count", chosen, segmented, plain, *self._doubts(answer, chosen, segmented))

    def _doubts(self, answer: Answer, reading: Reading, segmented: SegmentedIds) -> Iterator[str]:
        """Yield the codes of why a bill that is met proves nothing at this provider."""
        if self.habits.unreliable:
            yield "count_unreliable"
        unclosed = self.habits.unclosed and answer.calls and "tool_section_inside_reasoning" in reading.reasons
        if unclosed or (self.habits.end_unclear and segmented.ended):
            yield "end_token_unclear"
        close = self.context.markers.text("think_close")
        if (
            close
            and _splits_at_tag(reading)
            and any(close in piece.text for piece in reading.pieces if not piece.token)
        ):
            yield "literal_close_tag"
        if self.habits.rewrites and any(call.arguments not in ("", "{}") for call in answer.calls):
            yield "arguments_rewritten_by_server"
        if self.habits.sorts_keys and any(True for call in answer.calls for _ in keys_in(call)):
            yield "arguments_sorted_by_server"

    def _mismatched(
        self, answer: Answer, reading: Reading, segmented: SegmentedIds, plain: int | None
    ) -> RebuiltAnswer:
        """Return the answer when no reading meets the bill.

        White space is put back at the seams if exactly one way to do so meets the bill.
        """
        fitting = self._seam_variants(reading, segmented, self.habits.may_strip, enough=2)
        if len(fitting) == 1:
            candidate, change = fitting[0]
            habit = ", as this provider's rows with known ids lost" if self.habits.verified else ""
            return self._made(
                "count",
                reading,
                candidate,
                plain,
                *self._doubts(answer, reading, candidate),
                note=describe(change) + habit,
            )
        if fitting or self._seam_variants(reading, segmented, _ANYWHERE, enough=1):
            return self._made("text", reading, segmented, plain, "count_mismatch", "edge_whitespace_suspected")
        return self._made("text", reading, segmented, plain, "count_mismatch")

    def _seam_variants(
        self, reading: Reading, segmented: SegmentedIds, spaces: Spaces, enough: int
    ) -> list[tuple[SegmentedIds, Change]]:
        """Return the ways to put white space back that meet the bill, at most `enough` of them."""
        assert self.bill.tokens is not None
        if not 0 < self.bill.tokens - self._billed(segmented) <= MAX_EXTRA:
            return []
        candidates = (
            (assemble(pieces, self.encode), change)
            for pieces, change in variants(reading.pieces, spaces, self.context.format.seams)
        )
        return list(
            itertools.islice((pair for pair in candidates if self._billed(pair[0]) == self.bill.tokens), enough)
        )

    def _same_count(self, options: list[Reading]) -> str | None:
        """Describe a way to put white space back, at a seam that this provider strips, that meets the bill as well.

        The result is None where no way does.
        """
        changed = (variant for reading in options for variant in variants(reading.pieces, self.habits.strips, {}))
        return next(
            (
                describe(change)
                for pieces, change in changed
                if self._billed(assemble(pieces, self.encode)) == self.bill.tokens
            ),
            None,
        )

    def _billed(self, segmented: SegmentedIds) -> int:
        """Return how many tokens this provider would bill."""
        return segmented.billed(bills_end=self.habits.bills_end)

    def _made(
        self,
        evidence: Evidence,
        reading: Reading,
        segmented: SegmentedIds,
        plain: int | None,
        *reasons: str,
        note: str | None = None,
    ) -> RebuiltAnswer:
        delta = None if self.bill.tokens is None else self.bill.tokens - len(segmented)
        notes = [*self.notes, *self.bill.notes, *reading.repairs]
        if note is not None:
            notes.append(note)
        if delta is not None and self._billed(segmented) != len(segmented):
            notes.append("terminator_not_billed")
        notes += self._spelled_out(reading)
        if evidence == "count" and not UNDECIDED.isdisjoint((*reading.reasons, *reasons)):
            evidence = "text"
        return RebuiltAnswer(
            segmented, evidence, delta, tuple(notes), tuple(dict.fromkeys((*reading.reasons, *reasons))), plain
        )

    def _spelled_out(self, reading: Reading) -> Iterator[str]:
        """Yield notes on special tokens, or what looks like one, in the reading's texts."""
        texts = [piece.text for piece in reading.pieces if piece.token is None and self.encode.marked(piece.text)]
        if not texts:
            return
        if any(map(self.context.markers.literals, texts)):
            yield "literal_special_text"
        if any(map(self.context.markers.look_alikes, texts)):
            yield "marker_like_text"

    def _mismatch(self, answer: Answer, reading: Reading) -> tuple[str, ...]:
        """Return the code for a bill that does not fit the text which a server shows in place of the model's own."""
        different = (
            answer.rejects
            and self.bill.tokens is not None
            and len(assemble(reading.pieces, self.encode)) != self.bill.tokens
        )
        return ("count_mismatch",) if different else ()

    def _rejected(self, codes: tuple[str, ...]) -> RebuiltAnswer:
        return RebuiltAnswer(None, notes=(*self.notes, *self.bill.notes), reasons=tuple(dict.fromkeys(codes)))


def _splits_at_tag(reading: Reading) -> bool:
    """Return whether a tag in the text says where the reasoning ends."""
    return any("_close_tag_in_" in repair for repair in reading.repairs)


def _label(reading: Reading, first: Reading) -> str:
    """Describe for a note how a reading differs from the first."""
    changed = [p.text for p, q in itertools.zip_longest(reading.pieces, first.pieces) if p is not None and p != q]
    return "+".join(reading.repairs) or "+".join(repr(text[:40]) for text in changed[:2]) or "default"
