"""The page of one dataset's audit: verdict, checks, providers, and rows to look at."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.core.html.blocks import Cell, badge, cards, facts, fold, money, number, percent, row_filter, table
from pipeline.core.html.frame import page
from pipeline.core.html.markup import Html, join, tag
from pipeline.core.html.plots import bars, histogram, signed_histogram, stacked
from pipeline.stages.audit.checks.catalog import BY_NAME
from pipeline.stages.audit.engine import AuditTally
from pipeline.stages.audit.inputs.context import Context
from pipeline.stages.audit.inputs.latency import Latencies
from pipeline.stages.audit.page.samples import Sample
from pipeline.stages.audit.page.token_view import view

EVIDENCE = ("ids", "logprobs", "count", "text", "none")
PROMPT_EVIDENCE = ("ids", "count", "text", "none")
_REASONS = 6
"""Reasons for leaving rows out that are shown without a click."""
_LONGEST = 120
"""Most characters that are shown of an id, a name or a note."""
_MOST = 100
"""Most lines of a table whose length depends on the data."""
_RANK = {"error": 3, "warn": 2, "info": 1, "off": 0}


def report(
    title: str, summary: dict[str, Any], tally: AuditTally, context: Context, notes: list[str], latencies: Latencies
) -> str:
    """Return the whole page; ``notes`` are sentences about inputs that were not given."""
    return page(
        title,
        [
            ("verdict", "", verdict(title, summary, notes)),
            ("checks", "Checks", checks(summary, tally)),
            ("providers", "Providers", providers(summary, latencies)),
            ("evidence", "Evidence", evidence(summary)),
            ("distributions", "Distributions", distributions(tally, latencies)),
            ("findings", "Findings", findings(summary, tally)),
            ("rows", "Rows to look at", rows(tally, context)),
        ],
    )


def short(text: object) -> str:
    """Cut a text to a length that fits a line."""
    shown = str(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}\u2026"


def anchor(row_id: str) -> str:
    """Return the id of a row's element."""
    return f"row-{short(row_id)}"


def verdict(title: str, summary: dict[str, Any], notes: list[str]) -> Html:
    """Show the verdict, its reasons, and the most important figures."""
    gate, billing = summary["gate"], summary["billing"]
    go = gate["verdict"] == "go"
    held = summary["rows"] - summary["status"].get("reject", 0)
    said = "This data may be trained on." if go else "Nothing after the gate runs on this data. Why:"
    box = tag(
        "div",
        tag("h1", title),
        tag("strong", "Go" if go else "No-go", class_="word"),
        tag("p", said),
        tag("ul", *(tag("li", reason) for reason in gate["reasons"])) if gate["reasons"] else None,
        class_=f"verdict {gate['verdict']}",
    )
    figures = cards(
        [
            (
                f"{summary['accepted']:,}",
                f"of {summary['rows']:,} rows accepted ({summary['accepted'] / max(summary['rows'], 1):.1%})",
            ),
            (f"{summary['accepted_tokens']:,}", "answer tokens to train on"),
            (f"{summary['rows_with_error']:,}", f"of {held:,} rows with ids have an error"),
            (
                number(None if billing["relative"] is None else billing["relative"] * 100, 2, " %"),
                f"rebuilt and billed differ; {number(billing['max_absolute'])} tokens at most",
            ),
            (money(summary["cost_usd"], 2).shown, "spent on this dataset"),
        ]
    )
    return join(box, figures, left_out(summary), tag("p", *notes, class_="soft small") if notes else None)


def left_out(summary: dict[str, Any]) -> Html:
    """Show why rows are left out: the most frequent reasons, and the others behind a click."""
    gone = [
        (short(why), count, percent(count / summary["rows"]))
        for why, count in sorted(summary["left_out"].items(), key=lambda item: (-item[1], item[0]))
    ]
    if not gone:
        return tag("p", "No row was left out.")
    heads, caption = (
        ("Left out because", "Rows", "Share"),
        "Rows that training will not see; each counts under one reason",
    )
    more = (
        fold(f"{len(gone) - _REASONS} rarer reasons", table(heads, gone[_REASONS:_MOST], caption="Rarer reasons"))
        if len(gone) > _REASONS
        else None
    )
    return join(table(heads, gone[:_REASONS], caption=caption), more)


def checks(summary: dict[str, Any], tally: AuditTally) -> Html:
    """Show every check with its sentence, its number of rows, and some of them."""
    lines, kinds = [], []
    ordered = sorted(
        summary["checks"].items(),
        key=lambda item: -_RANK[item[1]["severity"]] if item[1]["rows"] else item[1]["severity"] == "off",
    )
    for name, counted in ordered:
        severity = counted["severity"]
        found = tally.samples.examples.get(name, [])
        shown = {sample.fields["id"] for sample in tally.samples.rows()}
        links = [
            tag("a", short(finding.id), href=f"#{anchor(finding.id)}")
            if finding.id in shown
            else tag("span", short(finding.id))
            for finding in found[:3]
        ]
        state = "off" if severity == "off" else severity if counted["rows"] else "ok"
        kinds.append(f"{state} {severity}")
        what = join(tag("b", name), tag("span", BY_NAME[name].sentence, class_="soft what"))
        first = tag("span", *(join(" ", link) for link in links), class_="small mono")
        lines.append(
            (
                Cell(what, name),
                Cell(badge("passed" if state == "ok" else state, state), str(_RANK.get(state, 0))),
                counted["rows"],
                percent(counted["rows"] / max(summary["rows"], 1), 2),
                Cell(first, ""),
            )
        )
    caption = "error leaves the row out; warn and info only count"
    return join(
        row_filter("check-rows", "result", ("error", "warn", "info", "ok", "off")),
        table(
            ("Check", "Result", "Rows", "Share", "For example"),
            lines,
            caption=caption,
            body_id="check-rows",
            kinds=kinds,
        ),
    )


def providers(summary: dict[str, Any], latencies: Latencies) -> Html:
    """Show the scorecard of each provider in a line."""
    lines = []
    for name, card in summary["providers"].items():
        latency, billing = latencies.get(name, np.zeros(0)), card["billing"]
        lines.append(
            (
                short(name),
                card["rows"],
                ", ".join(card["quantizations"]) or None,
                percent(card["exact_share"]),
                percent(card["known_share"]),
                percent(card["error_share"]),
                Cell(
                    number(billing["mean_absolute"], 2),
                    billing["mean_absolute"] if billing["mean_absolute"] is not None else -1.0,
                ),
                percent(card["schema_accuracy"]),
                percent(card["truncated_share"]),
                percent(card["repeat_share"]),
                money(card["usd_per_million"], 3),
                *(milliseconds(latency, share) for share in (50, 95)),
                money(card["cost_usd"], 2),
            )
        )
    heads = (
        "Provider",
        "Rows",
        "Number format",
        "Exact",
        "Known",
        "Errors",
        "Off by",
        "Tool calls valid",
        "Cut",
        "Repeats",
        "$ per M",
        "Latency",
        "95 % within",
        "Cost",
    )
    legend = (
        "Exact: ids or logprobs came with the answer. Known: exact, or the count agrees with the bill. "
        "Off by: mean difference of billed and rebuilt tokens. "
        "$ per M: dollars per million billed answer tokens. Latency: of the middle answer. "
        "Number format: of the endpoints that the policy admits; an answer does not say which of them gave it."
    )
    models = [
        (name, model, count) for name, card in summary["providers"].items() for model, count in card["models"].items()
    ]
    return join(
        table(heads, lines, caption="Scorecard"),
        tag("p", legend, class_="soft small"),
        table(("Provider", "Model, as it says", "Rows"), models[:_MOST], caption="Models that answered")
        if models
        else None,
    )


def evidence(summary: dict[str, Any]) -> Html:
    """Show how the ids are known, by provider, and the largest differences between bill and ids."""
    mix = {name: card["evidence"] for name, card in summary["providers"].items()}
    prompts = {name: card["prompt_evidence"] for name, card in summary["providers"].items()}
    tokens = summary["tokens"]
    return join(
        stacked("How the ids are known", {"all": summary["evidence"], **mix}, EVIDENCE),
        tag(
            "p",
            "ids: returned by the server. logprobs: from each token's bytes. "
            "count: encoded again, and as many as were billed. text: encoded again, count unknown or different. "
            "none: rejected, or not known.",
            class_="soft small",
        ),
        stacked("How the prompts are known", {"all": summary["prompt_evidence"], **prompts}, PROMPT_EVIDENCE),
        tag(
            "p",
            "ids: returned by the server. count: rendered, and as many tokens as were billed. "
            "text: rendered, bill unknown or different. none: not known.",
            class_="soft small",
        ),
        facts(
            [
                ("Prompt tokens", f"{tokens['prompt']:,}"),
                ("Answer tokens", f"{tokens['completion']:,}"),
                ("Billed answer tokens", f"{summary['billing']['billed_tokens']:,}"),
            ]
        ),
        outliers(summary["billing"]["outliers"]),
        table(("How answers ended", "Rows"), summary["finish"].items(), caption="finish_reason"),
    )


def outliers(found: list[dict[str, Any]]) -> Html | None:
    """Show the rows with the largest differences between bill and ids, or nothing where all agree."""
    if not found:
        return None
    lines = [
        (tag("code", line["id"]), line["provider"], line["billed"], Cell(f"{line['delta']:+,}", line["delta"]))
        for line in found
    ]
    return table(
        ("Row", "Provider", "Billed", "Billed minus rebuilt"), lines, caption="Largest differences between bill and ids"
    )


def milliseconds(values: NDArray[np.float64], share: int) -> Cell:
    """Show a percentile of latencies, which come in milliseconds, in seconds where it is long."""
    if not len(values):
        return Cell("\u2013", -1.0)
    found = float(np.percentile(values, share, method="higher"))
    return Cell(number(found, 0, " ms") if found < 1000 else number(found / 1000, 2, " s"), round(found, 3))


def distributions(tally: AuditTally, latencies: Latencies) -> Html:
    """Show histograms of lengths, differences and latencies."""
    stats = tally.stats
    times = np.concatenate([*latencies.values(), np.zeros(0)]).astype(np.int64)
    return tag(
        "div",
        bars("Length of the answers", histogram(stats.lengths[stats.lengths > 0]), "tokens"),
        bars("Length of the prompts", histogram(stats.prompt_lengths), "tokens"),
        bars("Billed minus rebuilt tokens", signed_histogram(stats.deltas()), "tokens"),
        bars("Latency", histogram(times), "ms"),
        class_="plots",
    )


def findings(summary: dict[str, Any], tally: AuditTally) -> Html:
    """Show the first findings of each check; findings.parquet has all of them."""
    lines, kinds = [], []
    for name, found in sorted(tally.samples.examples.items(), key=lambda item: -_RANK[item[1][0].severity]):
        for finding in found:
            lines.append(
                (
                    Cell(badge(finding.severity, finding.severity), str(_RANK[finding.severity])),
                    finding.check,
                    tag("code", short(finding.id)),
                    finding.position,
                    finding.message,
                )
            )
            kinds.append(f"{finding.severity} {name}")
    total = sum(counted["findings"] for counted in summary["checks"].values())
    if not lines:
        return tag("p", "No check found anything.")
    caption = f"{len(lines):,} of {total:,} findings: the first of each check; all are in findings.parquet"
    return join(
        row_filter("finding-rows", "kind", ("error", "warn", "info", *tally.samples.examples)),
        table(
            ("Severity", "Check", "Row", "Position", "What"),
            lines,
            caption=caption,
            body_id="finding-rows",
            kinds=kinds,
        ),
    )


def rows(tally: AuditTally, context: Context) -> Html:
    """Show the worst rows, token by token."""
    samples = tally.samples.rows()
    if not samples:
        return tag("p", "No row has a finding.")
    found = sorted({finding.check for sample in samples for finding in sample.findings})
    items = [row(sample, context) for sample in samples]
    return join(
        tag(
            "p",
            "The worst rows, then the first row of each check. A box is a token; its title has id and position. ",
            class_="soft",
        ),
        row_filter("row-list", "check", found),
        tag("div", *items, id="row-list"),
    )


def row(sample: Sample, context: Context) -> Html:
    """Show one row with its findings and tokens."""
    fields = sample.fields
    worst = max(sample.findings, key=lambda finding: _RANK[finding.severity])
    checks_found = list(dict.fromkeys(finding.check for finding in sample.findings))
    head = tag(
        "summary",
        badge(worst.severity, worst.severity),
        " ",
        tag("code", short(fields["id"])),
        " ",
        ", ".join(checks_found),
    )
    hits = {finding.position for finding in sample.findings if finding.position is not None}
    about = [
        (
            f"{finding.check}",
            finding.message if finding.position is None else f"{finding.message} (at {finding.position})",
        )
        for finding in sample.findings
    ]
    return tag(
        "details",
        head,
        facts([*about, *_known(fields)]),
        view(context, fields["completion_ids"], fields["segments"], hits),
        id=anchor(fields["id"]),
        data_kind=" ".join(checks_found),
    )


def _known(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the facts of a row, each with its name."""
    names = {
        "status": "Status",
        "reason": "Reason",
        "evidence": "Evidence",
        "provider": "Provider",
        "finish_reason": "Ended by",
        "billed_tokens": "Billed",
        "count_delta": "Billed minus rebuilt",
    }
    for key, name in names.items():
        if fields[key] is not None:
            yield name, short(fields[key])
    if fields["notes"]:
        yield "Notes", short(", ".join(fields["notes"]))
    yield "Tokens", f"{len(fields['prompt_ids']):,} in the prompt, {len(fields['completion_ids']):,} in the answer"
