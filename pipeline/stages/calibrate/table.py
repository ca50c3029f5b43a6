"""Calibration reports as tables for a terminal."""

from typing import Any


def table(report: dict[str, Any], title: str) -> str:
    """Return a table of rows, exact rows, differences and the exact rate with its interval; a line for each group."""
    if not report.get("rows"):
        return f"{title}: no rows with true ids"
    lines = [
        title,
        f"  {'':<40}{'rows':>8}{'exact':>8}{'cut':>7}{'text':>7}{'no ids':>8}   exact rate, 95 % interval",
    ]
    lines.append(_line("all", report))
    for name, groups in report.items():
        if name.startswith("by_"):
            lines.append(f" {name.replace('_', ' ')}")
            lines += [_line(group, entry) for group, entry in groups.items()]
    for example in report["differences"][:3]:
        lines.append(
            f" {example['id']}: {example['verdict']} at token {example['position']}: "
            f"rebuilt {example['rebuilt']}, true {example['true']}"
        )
    return "\n".join(lines)


def _line(name: str, entry: dict[str, Any]) -> str:
    low, high = entry["exact_interval"]
    rate = f"{entry['exact_rate']:8.2%}  [{low:.2%}, {high:.2%}]"
    counts = f"{entry['rows']:>8}{entry['exact']:>8}{entry['segmentation']:>7}{entry['text']:>7}{entry['none']:>8}"
    return f"  {name[:39]:<40}{counts}   {rate}"


def simulated_table(simulated: dict[str, dict[str, Any]]) -> str:
    """Return a table of rows, accepted rows, wrong ones among them and the exact rate; a line for each habit."""
    lines = [f"  {'':<32}{'rows':>7}{'accepted':>10}{'of these wrong':>16}   exact among all, 95 % interval"]
    for name, entry in simulated.items():
        accepted = entry["by_status"].get("accept", {"rows": 0, "exact": 0})
        low, high = entry["exact_interval"]
        counts = f"{entry['rows']:>7}{accepted['rows']:>10}{accepted['rows'] - accepted['exact']:>16}"
        lines.append(f"  {name:<32}{counts}   {entry['exact_rate']:8.2%}  [{low:.2%}, {high:.2%}]")
    return "\n".join(lines)
