"""Counts over all rows: reconstruct.json, a small file that people and git can read."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.answers.providers.habits import UNKNOWN, Habits
from pipeline.answers.rows import PackedRow
from pipeline.answers.segmented_ids import ID_BYTES

_PROVIDER, _STATUS, _EVIDENCE = 1, 2, 3
"""Positions of the parts in the key of a row count."""


@dataclass(slots=True)
class Tally:
    """Counts of rows; two tallies add up to one."""

    lines: int = 0
    """Input lines; each makes at least one row."""
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Maps (name of the count, what is counted, ...) to a number."""

    def count(self, lines: int, rows: Iterable[PackedRow]) -> None:
        """Count the rows that were made of `lines` lines."""
        self.lines += lines
        rows_by_kind: Counter[tuple[Any, ...]] = Counter()
        for row in rows:
            rows_by_kind[row.provider, row.status, row.evidence, row.reason, row.notes] += 1
            self.counts["tokens", row.status] += len(row.completion) // ID_BYTES
        for (provider, status, evidence, reason, notes), count in rows_by_kind.items():
            self.counts["row", provider or "unknown", status, evidence or "none"] += count
            for code in reason.split(", ") if reason else ():
                self.counts["reason", code] += count
            for code in {note.split(maxsplit=1)[0].rstrip(":") for note in notes if note}:
                self.counts["note", code] += count

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.lines += other.lines
        self.counts.update(other.counts)

    def _of(self, name: str) -> dict[str, int]:
        """Return the counts with a name, by what is counted."""
        return {key[1]: count for key, count in sorted(self.counts.items()) if key[0] == name}

    def _rows(self, place: int, provider: str | None = None) -> Counter[str]:
        """Count rows by one part of their key, for one provider or for all."""
        rows: Counter[str] = Counter()
        for key, count in sorted(self.counts.items()):
            if key[0] == "row" and provider in (None, key[1]):
                rows[key[place]] += count
        return rows

    def document(self, habits: dict[str | None, Habits]) -> dict[str, Any]:
        """Return all counts in the shape of reconstruct.json."""
        status, evidence = self._rows(_STATUS), self._rows(_EVIDENCE)
        return {
            "version": 1,
            "lines": self.lines,
            "rows": status.total(),
            "status": {name: status[name] for name in ("accept", "flag", "reject")},
            "evidence": {kind: evidence[kind] for kind in ("ids", "logprobs", "count", "text", "none")},
            "tokens": {name: self.counts["tokens", name] for name in ("accept", "flag")},
            "reasons": self._of("reason"),
            "notes": self._of("note"),
            "providers": {name: self._provider(name, habits) for name in self._rows(_PROVIDER)},
        }

    def _provider(self, name: str, habits: dict[str | None, Habits]) -> dict[str, Any]:
        own = habits.get(None if name == "unknown" else name, UNKNOWN)
        return {
            "status": dict(sorted(self._rows(_STATUS, name).items())),
            "evidence": dict(sorted(self._rows(_EVIDENCE, name).items())),
            "bills_end_token": own.bills_end,
            "strips": sorted(own.strips),
            "respaces_arguments": own.respaces,
            "rewrites_arguments": own.rewrites or own.sorts_keys,
            "count_usable": not own.unreliable and not own.end_unclear,
        }
