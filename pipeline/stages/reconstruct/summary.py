"""Counts over all rows: what the stage leaves beside the table, for people and for git."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.answers.providers.habits import UNKNOWN, Habits
from pipeline.answers.rows import PackedRow
from pipeline.answers.segmented_ids import ID_BYTES

_PROVIDER, _STATUS, _EVIDENCE = 1, 2, 3
"""Places in the key of a row's count."""


@dataclass(slots=True)
class Tally:
    """Counts of rows; two tallies add up to one."""

    lines: int = 0
    """Input lines; each makes at least one row."""
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """(name of the count, what is counted, ...) to number."""

    def take(self, lines: int, rows: Iterable[PackedRow]) -> None:
        """Count the rows of so many lines."""
        self.lines += lines
        alike: Counter[tuple[Any, ...]] = Counter()
        for row in rows:
            alike[row.provider, row.status, row.evidence, row.reason, row.notes] += 1
            self.counts["tokens", row.status] += len(row.completion) // ID_BYTES
        for (provider, status, evidence, reason, notes), count in alike.items():
            self.counts["row", provider or "unknown", status, evidence or "none"] += count
            for code in reason.split(", ") if reason else ():
                self.counts["reason", code] += count
            for code in {note.split(maxsplit=1)[0].rstrip(":") for note in notes if note}:
                self.counts["note", code] += count

    def add(self, other: "Tally") -> None:
        """Take in another tally."""
        self.lines += other.lines
        self.counts.update(other.counts)

    def _of(self, name: str) -> dict[str, int]:
        """Counts under a name, by what is counted."""
        return {key[1]: count for key, count in sorted(self.counts.items()) if key[0] == name}

    def _rows(self, place: int, provider: str | None = None) -> Counter[str]:
        """Rows by one part of their key, of one provider or all."""
        found: Counter[str] = Counter()
        for key, count in sorted(self.counts.items()):
            if key[0] == "row" and provider in (None, key[1]):
                found[key[place]] += count
        return found

    def document(self, habits: dict[str | None, Habits]) -> dict[str, Any]:
        """Everything, in the shape of reconstruct.json."""
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


def table(document: dict[str, Any]) -> str:
    """The summary for a terminal."""
    lines = [f"{document['lines']} lines, {document['rows']} rows"]
    lines += [f"  {status:<8}{count:>9}" for status, count in document["status"].items()]
    lines.append("evidence")
    lines += [f"  {kind:<8}{count:>9}" for kind, count in document["evidence"].items() if count]
    for title, counts in (("flagged and rejected, by reason", document["reasons"]), ("notes", document["notes"])):
        if counts:
            lines.append(title)
            lines += [
                f"  {code:<40}{count:>9}"
                for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            ]
    lines.append(f"{'provider':<28}{'accept':>8}{'flag':>8}{'reject':>8}  habits")
    for name, entry in document["providers"].items():
        habits = [] if entry["bills_end_token"] else ["end token not billed"]
        habits += [f"may strip {', '.join(entry['strips'])}"] if entry["strips"] else []
        habits += ["spaces arguments anew"] if entry["respaces_arguments"] else []
        habits += ["writes arguments anew"] if entry["rewrites_arguments"] else []
        habits += [] if entry["count_usable"] else ["count proves nothing"]
        status = entry["status"]
        lines.append(
            f"{name[:27]:<28}{status.get('accept', 0):>8}{status.get('flag', 0):>8}{status.get('reject', 0):>8}  {'; '.join(habits)}"
        )
    return "\n".join(lines)
