"""The summary of a reconstruction as a table for a terminal."""

from typing import Any


def table(document: dict[str, Any]) -> str:
    """Return the document of reconstruct.json as a table."""
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
        counts = "".join(f"{status.get(kind, 0):>8}" for kind in ("accept", "flag", "reject"))
        lines.append(f"{name[:27]:<28}{counts}  {'; '.join(habits)}")
    return "\n".join(lines)
