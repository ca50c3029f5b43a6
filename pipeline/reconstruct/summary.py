"""Counts over all rows: what the stage leaves beside the table, for people and for git."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.answers.habits import Habits
from pipeline.answers.rows import Row
from pipeline.reconstruct.columns import Counted


@dataclass(slots=True)
class Tally:
    """Counts of rows; two tallies add up to one."""

    lines: int = 0
    """Input lines; each makes at least one row."""
    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """(name of the count, what is counted, ...) to number."""

    def take(self, lines: int, rows: Iterable[Row | Counted]) -> None:
        """Count the rows of so many lines."""
        self.lines += lines
        for row in rows:
            provider = row.provider or "unknown"
            tokens = len(row.completion) // 4
            self.counts["rows",] += 1
            self.counts["status", row.status] += 1
            self.counts["evidence", row.evidence or "none"] += 1
            self.counts["provider", provider, row.status] += 1
            self.counts["provider_evidence", provider, row.evidence or "none"] += 1
            self.counts["tokens", row.status] += tokens
            for code in row.reason.split(", ") if row.reason else ():
                self.counts["reason", code] += 1
            for code in {note.split(maxsplit=1)[0].rstrip(":") for note in row.notes if note}:
                self.counts["note", code] += 1

    def add(self, other: "Tally") -> None:
        """Take in another tally."""
        self.lines += other.lines
        self.counts.update(other.counts)

    def of(self, *name: str) -> dict[str, int]:
        """Counts under a name, by what is counted."""
        return {key[-1]: count for key, count in sorted(self.counts.items()) if key[:-1] == name}

    def document(self, habits: dict[str | None, Habits]) -> dict[str, Any]:
        """Everything, in the shape of reconstruct.json."""
        providers = sorted({key[1] for key in self.counts if key[0] == "provider"})
        return {
            "version": 1,
            "lines": self.lines,
            "rows": self.counts["rows",],
            "status": {status: self.counts["status", status] for status in ("accept", "flag", "reject")},
            "evidence": {kind: self.counts["evidence", kind] for kind in ("ids", "logprobs", "count", "text", "none")},
            "tokens": {status: self.counts["tokens", status] for status in ("accept", "flag")},
            "reasons": self.of("reason"),
            "notes": self.of("note"),
            "providers": {name: self._provider(name, habits) for name in providers},
        }

    def _provider(self, name: str, habits: dict[str | None, Habits]) -> dict[str, Any]:
        own = habits.get(None if name == "unknown" else name, Habits())
        return {
            "status": self.of("provider", name),
            "evidence": self.of("provider_evidence", name),
            "bills_end_token": own.bills_end,
            "strips": sorted(own.strips),
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
            lines += [f"  {code:<40}{count:>9}" for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    lines.append(f"{'provider':<28}{'accept':>8}{'flag':>8}{'reject':>8}  habits")
    for name, entry in document["providers"].items():
        habits = [] if entry["bills_end_token"] else ["end token not billed"]
        habits += [f"may strip {', '.join(entry['strips'])}"] if entry["strips"] else []
        status = entry["status"]
        lines.append(f"{name[:27]:<28}{status.get('accept', 0):>8}{status.get('flag', 0):>8}{status.get('reject', 0):>8}  {'; '.join(habits)}")
    return "\n".join(lines)
