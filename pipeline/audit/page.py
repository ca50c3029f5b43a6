"""report.html of one dataset's audit."""

from html import escape
from typing import Any


def page(title: str, summary: dict[str, Any]) -> str:
    """One self-contained page: the verdict, then the numbers behind it."""
    gate = summary["gate"]
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(check['severity'])}</td><td>{check['rows']}</td></tr>" for name, check in summary["checks"].items())
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in gate["reasons"])
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><h1>{escape(title)}: {escape(gate['verdict'])}</h1>"
        f"<ul>{reasons}</ul><p>{summary['accepted']} of {summary['rows']} rows accepted</p><table>{rows}</table></html>\n"
    )
