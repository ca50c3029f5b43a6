"""A calibration report for a terminal."""

from typing import Any


def table(report: dict[str, Any], title: str) -> str:
    """One line a group: rows, exact, differences, the exact rate with its interval."""
    if not report.get("rows"):
        return f"{title}: no rows with true ids"
    lines = [
        f"{title}",
        f"  {'':<40}{'rows':>8}{'exact':>8}{'cut':>7}{'text':>7}{'no ids':>8}   exact rate, 95 % interval",
    ]
    lines.append(_line("all", report))
    for name, groups in report.items():
        if name.startswith("by_"):
            lines.append(f" {name.replace('_', ' ')}")
            lines += [_line(group, entry) for group, entry in groups.items()]
    for example in report["differences"][:3]:
        lines.append(
            f" {example['id']}: {example['verdict']} at token {example['position']}: rebuilt {example['rebuilt']}, true {example['true']}"
        )
    return "\n".join(lines)


def _line(name: str, entry: dict[str, Any]) -> str:
    low, high = entry["exact_interval"]
    rate = f"{entry['exact_rate']:8.2%}  [{low:.2%}, {high:.2%}]"
    return f"  {name[:39]:<40}{entry['rows']:>8}{entry['exact']:>8}{entry['segmentation']:>7}{entry['text']:>7}{entry['none']:>8}   {rate}"
