"""The page of a whole build: its state, its cost, how the ids are known, and how good the drafter is."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pipeline.core.html.blocks import Cell, badge, cards, facts, money, number, percent, table
from pipeline.core.html.frame import page
from pipeline.core.html.markup import Html, join, tag
from pipeline.core.html.plots import bars, lines, stacked
from pipeline.project.report.gather import Build, BuiltDataset
from pipeline.project.report.overlap import Overlap

EVIDENCE = ("ids", "logprobs", "count", "text", "none")
Overlaps = dict[tuple[str, str], Overlap]
"""Rows in common by the names of two datasets."""
_MOST_POINTS = 200
"""A longer training log is thinned out to between this many points and twice as many."""


def report(build: Build, overlaps: Overlaps) -> str:
    """Return the whole page."""
    return page(
        "Build report",
        [
            ("verdict", "", verdict(build)),
            ("datasets", "Datasets", datasets(build)),
            ("state", "State of the pipeline", state(build)),
            ("cost", "Cost", cost(build)),
            ("evidence", "How well the ids are known", evidence(build)),
            ("duplicates", "Across datasets", duplicates(overlaps)),
            ("drafter", "Drafter", drafter(build)),
        ],
    )


def word(dataset: BuiltDataset) -> str:
    """Return the verdict on a dataset: go, no-go, or not audited."""
    return "not audited" if dataset.audit is None else str(dataset.audit["gate"]["verdict"])


def verdict(build: Build) -> Html:
    """Show the state of the build in a sentence, and the most important figures."""
    stopped = [dataset.name for dataset in build.datasets if word(dataset) == "no-go"]
    unaudited = [dataset.name for dataset in build.datasets if word(dataset) == "not audited"]
    length = (build.evaluation or {}).get("acceptance_length")
    if stopped:
        title = "No-go"
        sentence = f"The gate stops {', '.join(stopped)}; nothing is extracted or trained until that is settled."
    elif unaudited:
        title, sentence = "Under way", f"Not audited yet: {', '.join(unaudited)}."
    elif build.evaluation is None:
        title, sentence = "Go", "Every dataset may be trained on. No drafter is evaluated yet."
    else:
        title = "Done"
        sentence = (
            "Every dataset passed, and the drafter is evaluated: "
            f"{number(length, 2)} tokens are written for each pass of the target."
        )
    audits = [dataset.audit for dataset in build.datasets if dataset.audit is not None]
    figures = [
        (f"{len(build.datasets) - len(unaudited)} / {len(build.datasets)}", "datasets audited"),
        (
            f"{sum(audit['accepted'] for audit in audits):,}",
            f"of {sum(audit['rows'] for audit in audits):,} rows accepted",
        ),
        (f"{sum(audit['accepted_tokens'] for audit in audits):,}", "answer tokens to train on"),
        (money(spent(build), 2).shown, "spent so far"),
        (number(length, 2), "acceptance length of the drafter"),
    ]
    kind = "no-go" if stopped else "go"
    return join(
        tag(
            "div",
            tag("h1", "Build report"),
            tag("strong", title, class_="word"),
            tag("p", sentence),
            class_=f"verdict {kind}",
        ),
        cards(figures),
    )


def spent(build: Build) -> float | None:
    """Return the dollars spent on all datasets, as `generate` counted them, or else the audit; None where unknown."""
    costs = [
        cost
        for dataset in build.datasets
        if (cost := (dataset.generate or dataset.audit or {}).get("cost_usd")) is not None
    ]
    return sum(costs) if costs else None


def datasets(build: Build) -> Html:
    """Show each dataset in a line, with a link to its report."""
    rows = []
    for dataset in build.datasets:
        audit, decided = dataset.audit, word(dataset)
        name = (
            tag("a", dataset.name, href=f"{quote(dataset.name)}/audit/report.html") if dataset.report else dataset.name
        )
        mark = badge(decided, {"go": "ok", "no-go": "error"}.get(decided, "off"))
        if audit is None:
            rows.append((Cell(name, dataset.name), Cell(mark, decided), *[None] * 6))
            continue
        off = audit["billing"]["mean_absolute"]
        rows.append(
            (
                Cell(name, dataset.name),
                Cell(mark, decided),
                audit["rows"],
                audit["accepted"],
                percent(audit["accepted"] / audit["rows"] if audit["rows"] else None),
                audit["rows_with_error"],
                Cell(number(off, 2), -1.0 if off is None else off),
                Cell("; ".join(audit["gate"]["reasons"]) or "\u2013", ""),
            )
        )
    return table(
        ("Dataset", "Verdict", "Rows", "Accepted", "Share", "With errors", "Off by", "Why not"),
        rows,
        caption="Each name leads to the dataset's own report",
    )


def state(build: Build) -> Html:
    """Show which stages have made their files; `dvc status` says which of these are up to date."""
    stages = list(build.datasets[0].made) if build.datasets else []

    def mark(made: bool) -> Cell:
        return Cell(badge("made", "ok") if made else badge("missing", "off"), int(made))

    rows: list[Sequence[object]] = [
        (dataset.name, *(mark(dataset.made[stage]) for stage in stages)) for dataset in build.datasets
    ]
    whole = [(name, mark(made)) for name, made in build.made.items()]
    return join(
        table(("Dataset", *stages), rows, caption="Stages of each dataset"),
        table(("Stage", "State"), whole, caption="Stages of the whole build"),
        tag(
            "p",
            "Made means that the files are there; `dvc status` says whether they are up to date.",
            class_="soft small",
        ),
    )


def cost(build: Build) -> Html:
    """Show money and tokens by dataset and by provider, with the caps."""
    rows = []
    for dataset in build.datasets:
        generated = dataset.generate or {}
        cap = build.config.get("datasets", {}).get(dataset.name, {}).get("budget", {}).get("usd")
        for name, part in sorted(generated.get("by_provider", {}).items()):
            rows.append(
                (dataset.name, name, part.get("answers"), part.get("completion_tokens"), money(part.get("cost_usd")))
            )
        rows.append(
            (
                dataset.name,
                Cell("all", ""),
                generated.get("answered"),
                generated.get("completion_tokens"),
                Cell(
                    f"{money(generated.get('cost_usd')).shown} of {money(cap, 2).shown}",
                    generated.get("cost_usd") or 0.0,
                ),
            )
        )
    whole = build.config.get("budget", {})
    caps = facts(
        [
            ("Spent", money(spent(build)).shown),
            ("Cap of the build", money(whole.get("usd"), 2).shown),
            ("Cap in tokens", number(whole.get("completion_tokens"))),
        ]
    )
    return join(
        caps, table(("Dataset", "Provider", "Answers", "Tokens", "Cost"), rows, caption="What the answers cost")
    )


def evidence(build: Build) -> Html:
    """Show how the ids are known, by dataset, and how the rebuilt ids compare with true ones from a server."""
    mix = {dataset.name: dataset.audit["evidence"] for dataset in build.datasets if dataset.audit is not None}
    rows = []
    for dataset in build.datasets:
        calibration = dataset.calibration or {}
        for group, entry in calibration.get("by_evidence", {}).items():
            rows.append((dataset.name, group, *calibrated(entry)))
        if calibration.get("rows"):
            rows.append((dataset.name, Cell("all", ""), *calibrated(calibration)))
    truth = (
        table(
            ("Dataset", "Evidence", "Rows", "Exact", "Exact rate", "95 % interval", "Other split", "Other text"),
            rows,
            caption="Rebuilt ids against true ids",
        )
        if rows
        else None
    )
    return join(
        stacked("Evidence", mix, EVIDENCE) if mix else tag("p", "Nothing is audited yet."),
        truth or tag("p", "No server reported true ids to compare the rebuilt ones with."),
    )


def calibrated(entry: dict[str, Any]) -> tuple[object, ...]:
    """Return the cells of one group of a calibration."""
    low, high = entry["exact_interval"]
    return (
        entry["rows"],
        entry["exact"],
        percent(entry["exact_rate"], 2),
        Cell(f"{low:.1%} \u2013 {high:.1%}", low),
        entry["segmentation"],
        entry["text"],
    )


def duplicates(overlaps: Overlaps) -> Html:
    """Show the rows that two datasets have in common."""
    if not overlaps:
        return tag(
            "p",
            "No accepted prompt or answer occurs in two datasets, "
            "and no answer is almost the same as one of another dataset.",
        )
    rows = [
        (
            *names,
            *(overlap.counts[kind] for kind in ("prompt", "completion", "near")),
            Cell(
                join(
                    *(
                        join(tag("code", one[:40]), " and ", tag("code", other[:40]), "; ")
                        for one, other in overlap.examples
                    )
                ),
                "",
            ),
        )
        for names, overlap in overlaps.items()
    ]
    heads = ("Dataset", "Also in", "Same prompt", "Same answer", "Almost the same answer", "For example")
    return table(heads, rows, caption="Accepted rows of the second dataset that are like one of the first")


def drafter(build: Build) -> Html:
    """Show training curves and acceptance."""
    return join(curves(build.log), acceptance(build.evaluation))


def curves(log: list[dict[str, float | None]]) -> Html:
    """Show loss, accuracy and held-out acceptance over the steps."""
    if not log:
        return tag("p", "No drafter is trained yet.")
    steps = [row.get("step") or 0.0 for row in log]
    names = list(log[0])
    losses = [name for name in names if name == "loss"]
    accuracies = [name for name in names if name.startswith("accuracy")][:5]
    held = [
        (step, row["heldout_acceptance"])
        for step, row in zip(steps, log, strict=True)
        if row.get("heldout_acceptance") is not None
    ]

    drawn = range(0, len(log), max(1, len(log) // _MOST_POINTS))

    def series(chosen: list[str]) -> dict[str, list[float | None]]:
        return {name: [log[index].get(name) for index in drawn] for name in chosen}

    drawn_steps = [steps[index] for index in drawn]
    return tag(
        "div",
        lines("Training loss", drawn_steps, series(losses), "step"),
        lines("Accuracy by draft position", drawn_steps, series(accuracies), "step"),
        lines(
            "Acceptance on held-out rows, estimated",
            [step for step, _value in held],
            {"acceptance": [value for _step, value in held]},
            "step",
        ),
        class_="plots",
    )


def acceptance(evaluation: dict[str, Any] | None) -> Html:
    """Show the results of the evaluation."""
    if evaluation is None:
        return tag("p", "No drafter is evaluated yet.")
    anchors = evaluation.get("anchors", {})
    rows = [
        (name, part.get("acceptance_length"), part.get("prompts"))
        for name, part in evaluation.get("datasets", {}).items()
    ]
    shares = evaluation.get("per_position", [])
    positions = [(str(index), round(share * 100)) for index, share in enumerate(shares, 1)]
    return join(
        facts(
            [
                ("Acceptance length", number(evaluation.get("acceptance_length"), 3)),
                ("Draft tokens", number(evaluation.get("draft_tokens"))),
                *(
                    (f"Anchor: {name}", number(value, 3))
                    for name, value in anchors.items()
                    if isinstance(value, int | float)
                ),
            ]
        ),
        table(
            ("Dataset", "Acceptance length", "Prompts"),
            rows,
            caption="Real greedy speculative decoding on held-out prompts",
        )
        if rows
        else None,
        bars("Accepted at each draft position, per cent", positions, "position") if positions else None,
    )
