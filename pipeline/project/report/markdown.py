"""Audits as Markdown, short enough for a pull request."""

import html
import re
from collections.abc import Mapping
from typing import Any

from pipeline.core.html.blocks import money, number, percent
from pipeline.core.html.markup import visible


def inert(text: object) -> str:
    """Make untrusted text safe inside a table or a list: no markup, no line break, no hidden character."""
    line = visible(" ".join(str(text).split()))
    escaped = html.escape(line, quote=False)  # the next line would escape the entity of a quote again
    return re.sub(r"[|@`\[\]*_~\\#!]", lambda found: f"&#{ord(found[0])};", escaped)


def code(text: object) -> str:
    """Show untrusted text as code, because an `@` mentions a user even when it is escaped."""
    return f"<code>{inert(text)}</code>"


def row(cells: list[object]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def markdown(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the verdicts on datasets in one table, then the findings and the scorecards of each."""
    lines = [
        "### Audit",
        "",
        row(["Dataset", "Verdict", "Accepted", "Rows", "Errors", "Mean off", "Max off", "Cost"]),
        row(["---"] * 8),
    ]
    for name, found in summaries.items():
        billing = found["billing"]
        verdict = "go" if found["gate"]["verdict"] == "go" else "**no-go**"
        off = [number(billing["mean_absolute"], 2), number(billing["max_absolute"])]
        lines.append(
            row(
                [
                    code(name),
                    verdict,
                    f"{found['accepted']:,}",
                    f"{found['rows']:,}",
                    f"{found['rows_with_error']:,}",
                    *off,
                    money(found["cost_usd"], 2).shown,
                ]
            )
        )
    for name, found in summaries.items():
        lines += ["", f"**{code(name)}**", ""]
        lines += [f"- no-go: {code(reason)}" for reason in found["gate"]["reasons"]]
        lines += [
            f"- left out: {code(why)}: {count:,}"
            for why, count in sorted(found["left_out"].items(), key=lambda item: (-item[1], item[0]))
        ]
        lines += [
            f"- {check['severity']} {code(key)}: {check['rows']:,} rows"
            for key, check in found["checks"].items()
            if check["rows"]
        ]
        lines += ["", *scorecards(found["providers"])]
    return "\n".join(lines) + "\n"


def scorecards(providers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the table of the providers' scorecards, as lines."""
    lines = [
        row(["Provider", "Rows", "Exact", "Known", "Errors", "Tool calls valid", "Cut", "$ per M"]),
        row(["---"] * 8),
    ]
    for name, card in providers.items():
        shares = [
            percent(card[key]).shown
            for key in ("exact_share", "known_share", "error_share", "schema_accuracy", "truncated_share")
        ]
        lines.append(row([code(name), f"{card['rows']:,}", *shares, money(card["usd_per_million"], 2).shown]))
    return lines
