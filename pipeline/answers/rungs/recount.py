"""The lower rungs: text is encoded again, and the bill decides between the readings that the format allows."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.answers.assemble import Built, Encoder, assemble
from pipeline.answers.outcome import Outcome
from pipeline.answers.providers.habits import SEAMS, WHITE_SPACE, Habits, Spaces
from pipeline.answers.readings.candidates import CUT_AT_MARKER, TRUNCATED, Prompted, Reading, readings
from pipeline.answers.readings.seams import MAX_EXTRA, Change, describe, variants
from pipeline.answers.readings.tool_calls import Context, keys_in, respaced
from pipeline.formats.completion.choices import Answer
from pipeline.formats.completion.usage import Bill
from pipeline.formats.schema.tokens import Evidence

REPLACEMENT = "\ufffd"
"""What servers show for bytes that are no text: the ids behind it are lost."""

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
"""Flags of what no count can confirm: others cost the same, or the count itself is in doubt."""


@dataclass(slots=True)
class Recount:
    """Rungs `count` and `text` for one answer. Not frozen: one is made for each answer, and a frozen one takes three times as long to make."""

    context: Context
    prompted: Prompted
    bill: Bill
    habits: Habits
    encode: Encoder
    notes: list[str]

    def outcome(self, answer: Answer) -> Outcome:
        """The reading that meets the bill, if one alone does; else the likeliest, flagged.

        Raises:
            InputError: a text holds a lone surrogate.

        """
        options = list(self._readings(answer))
        honest = [reading for reading in options if not reading.rejects]
        if answer.empty:
            return self._rejected(("empty_zero_tokens" if self.bill.tokens == 0 else "empty_answer",))
        if answer.rejects or not honest:
            return self._rejected((*answer.rejects, *options[0].rejects, *self._mismatch(answer, options[0])))
        builts = [assemble(reading.pieces, self.encode) for reading in honest]
        return self._chosen(answer, honest, builts, self._plain_delta(answer, honest[0], builts))

    def _readings(self, answer: Answer) -> Iterator[Reading]:
        """All readings; of a provider that writes arguments anew, with the other spacing too."""
        kept = () if answer.calls else self.habits.shows_lines  # with calls some servers strip what they keep otherwise
        yield from readings(answer, self.context, self.prompted, self.encode.marked, kept)
        if self.habits.respaces and (other := respaced(answer)) is not None:
            for reading in readings(other, self.context, self.prompted, self.encode.marked, kept):
                yield reading._replace(repairs=(*reading.repairs, "respaced_arguments"))

    def _plain_delta(self, answer: Answer, first: Reading, builts: list[Built]) -> int | None:
        """Billed minus rebuilt, when nothing but the provider's way of counting can explain a difference of one."""
        if (
            self.bill.tokens is None
            or first.repairs
            or not _TRUNCATIONS.issuperset(first.reasons)
            or answer.finish == "unknown"
        ):
            return None
        explained = any(len(built) == self.bill.tokens for built in builts[1:])
        return None if explained else self.bill.tokens - len(builts[0])

    def _chosen(self, answer: Answer, options: list[Reading], builts: list[Built], plain: int | None) -> Outcome:
        if self.bill.tokens is None:
            return self._made("text", options[0], builts[0], plain, "count_missing")
        fitting = [n for n, built in enumerate(builts) if self._billed(built) == self.bill.tokens]
        if not fitting:
            return self._mismatched(answer, options[0], builts[0], plain)
        chosen, built = options[fitting[0]], builts[fitting[0]]
        if len(fitting) > 1:
            labels = " / ".join(_label(options[n], options[0]) for n in fitting)
            return self._made("text", chosen, built, plain, "ambiguous_count", note=f"equal_count {labels}")
        if any(REPLACEMENT in piece.text for piece in chosen.pieces):
            return self._made("text", chosen, built, plain, "replacement_character")
        if self.habits.strips and (same := self._same_count(options)):
            return self._made("text", chosen, built, plain, "edge_whitespace_suspected", note=f"equal_count {same}")
        return self._made("count", chosen, built, plain, *self._doubts(answer, chosen, built))

    def _doubts(self, answer: Answer, reading: Reading, built: Built) -> Iterator[str]:
        """Why a bill that is met proves nothing at this provider."""
        if self.habits.unreliable:
            yield "count_unreliable"
        unclosed = self.habits.unclosed and answer.calls and "tool_section_inside_reasoning" in reading.reasons
        if unclosed or (self.habits.end_unclear and built.ended):
            yield "end_token_unclear"
        if self.habits.rewrites and any(call.arguments not in ("", "{}") for call in answer.calls):
            yield "arguments_rewritten_by_server"
        if self.habits.sorts_keys and any(True for call in answer.calls for _ in keys_in(call)):
            yield "arguments_sorted_by_server"

    def _mismatched(self, answer: Answer, reading: Reading, built: Built, plain: int | None) -> Outcome:
        """No reading meets the bill: try white space at the seams; take it only when one way alone does."""
        found = self._seams(reading, built, self.habits.may_strip, enough=2)
        if len(found) == 1:
            candidate, change = found[0]
            habit = ", as this provider's rows with known ids lost" if self.habits.verified else ""
            return self._made(
                "count",
                reading,
                candidate,
                plain,
                *self._doubts(answer, reading, candidate),
                note=describe(change) + habit,
            )
        if found or self._seams(reading, built, _ANYWHERE, enough=1):
            return self._made("text", reading, built, plain, "count_mismatch", "edge_whitespace_suspected")
        return self._made("text", reading, built, plain, "count_mismatch")

    def _seams(self, reading: Reading, built: Built, spaces: Spaces, enough: int) -> list[tuple[Built, Change]]:
        """Ways to put white space back that meet the bill, up to `enough` of them."""
        assert self.bill.tokens is not None
        if not 0 < self.bill.tokens - self._billed(built) <= MAX_EXTRA:
            return []
        candidates = (
            (assemble(pieces, self.encode), change)
            for pieces, change in variants(reading.pieces, spaces, self.context.format.seams)
        )
        return list(
            itertools.islice((pair for pair in candidates if self._billed(pair[0]) == self.bill.tokens), enough)
        )

    def _same_count(self, options: list[Reading]) -> str | None:
        """A way to put white space back, at a seam that this provider strips, in any reading, which meets the bill as well."""
        changed = (variant for reading in options for variant in variants(reading.pieces, self.habits.strips, {}))
        return next(
            (
                describe(change)
                for pieces, change in changed
                if self._billed(assemble(pieces, self.encode)) == self.bill.tokens
            ),
            None,
        )

    def _billed(self, built: Built) -> int:
        """Tokens that this provider would bill."""
        return built.billed(bills_end=self.habits.bills_end)

    def _made(
        self,
        evidence: Evidence,
        reading: Reading,
        built: Built,
        plain: int | None,
        *reasons: str,
        note: str | None = None,
    ) -> Outcome:
        delta = None if self.bill.tokens is None else self.bill.tokens - len(built)
        said = [*self.notes, *self.bill.notes, *reading.repairs]
        if note is not None:
            said.append(note)
        if delta is not None and self._billed(built) != len(built):
            said.append("terminator_not_billed")
        said += self._spelled_out(reading)
        if evidence == "count" and not UNDECIDED.isdisjoint((*reading.reasons, *reasons)):
            evidence = "text"
        return Outcome(built, evidence, delta, tuple(said), tuple(dict.fromkeys((*reading.reasons, *reasons))), plain)

    def _spelled_out(self, reading: Reading) -> Iterator[str]:
        texts = [piece.text for piece in reading.pieces if piece.token is None and self.encode.marked(piece.text)]
        if not texts:
            return
        if any(map(self.context.markers.literals, texts)):
            yield "literal_special_text"
        if any(map(self.context.markers.look_alikes, texts)):
            yield "marker_like_text"

    def _mismatch(self, answer: Answer, reading: Reading) -> tuple[str, ...]:
        """Whether what is shown in place of the model's words costs something else."""
        different = (
            answer.rejects
            and self.bill.tokens is not None
            and len(assemble(reading.pieces, self.encode)) != self.bill.tokens
        )
        return ("count_mismatch",) if different else ()

    def _rejected(self, codes: tuple[str, ...]) -> Outcome:
        return Outcome(None, notes=(*self.notes, *self.bill.notes), reasons=tuple(dict.fromkeys(codes)))


def _label(reading: Reading, first: Reading) -> str:
    """What distinguishes a reading, for people."""
    changed = [p.text for p, q in itertools.zip_longest(reading.pieces, first.pieces) if p is not None and p != q]
    return "+".join(reading.repairs) or "+".join(repr(text[:40]) for text in changed[:2]) or "default"
