"""build/report.html: where the build stands, what it cost, how well the ids are known, and what the drafter is worth."""

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


def report(build: Build, overlaps: Overlaps) -> str:
    """Whole page."""
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
    """Verdict of a dataset in a word."""
    return "not audited" if dataset.audit is None else str(dataset.audit["gate"]["verdict"])


def verdict(build: Build) -> Html:
    """Where the build stands, in a sentence, and the figures that matter most."""
    stopped = [dataset.name for dataset in build.datasets if word(dataset) == "no-go"]
    open_ones = [dataset.name for dataset in build.datasets if word(dataset) == "not audited"]
    length = (build.evaluation or {}).get("acceptance_length")
    if stopped:
        title, said = (
            "No-go",
            f"The gate stops {', '.join(stopped)}; nothing is extracted or trained until that is settled.",
        )
    elif open_ones:
        title, said = "Under way", f"Not audited yet: {', '.join(open_ones)}."
    elif build.evaluation is None:
        title, said = "Go", "Every dataset may be trained on. No drafter is evaluated yet."
    else:
        title, said = (
            "Done",
            f"Every dataset passed, and the drafter is evaluated: {number(length, 2)} tokens are written for each pass of the target.",
        )
    audits = [dataset.audit for dataset in build.datasets if dataset.audit is not None]
    figures = [
        (f"{len(build.datasets) - len(open_ones)} / {len(build.datasets)}", "datasets audited"),
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
            tag("p", said),
            class_=f"verdict {kind}",
        ),
        cards(figures),
    )


def spent(build: Build) -> float | None:
    """Dollars over all datasets, by what `generate` counted, else by the audit."""
    known = [
        cost
        for dataset in build.datasets
        if (cost := (dataset.generate or dataset.audit or {}).get("cost_usd")) is not None
    ]
    return sum(known) if known else None


def datasets(build: Build) -> Html:
    """One line a dataset, with its report."""
    rows = []
    for dataset in build.datasets:
        audit, said = dataset.audit, word(dataset)
        name = (
            tag("a", dataset.name, href=f"{quote(dataset.name)}/audit/report.html") if dataset.report else dataset.name
        )
        mark = badge(said, {"go": "ok", "no-go": "error"}.get(said, "off"))
        if audit is None:
            rows.append((Cell(name, dataset.name), Cell(mark, said), *[None] * 6))
            continue
        off = audit["billing"]["mean_absolute"]
        rows.append(
            (
                Cell(name, dataset.name),
                Cell(mark, said),
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
    """Which stages have made their files, dataset by dataset. Whether those are up to date is for `dvc status` to say."""
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
    """Money and tokens by dataset and by provider, against the caps."""
    rows = []
    for dataset in build.datasets:
        found = dataset.generate or {}
        cap = build.config.get("datasets", {}).get(dataset.name, {}).get("budget", {}).get("usd")
        for name, part in sorted(found.get("by_provider", {}).items()):
            rows.append(
                (dataset.name, name, part.get("answers"), part.get("completion_tokens"), money(part.get("cost_usd")))
            )
        rows.append(
            (
                dataset.name,
                Cell("all", ""),
                found.get("answered"),
                found.get("completion_tokens"),
                Cell(f"{money(found.get('cost_usd')).shown} of {money(cap, 2).shown}", found.get("cost_usd") or 0.0),
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
    """Evidence mix by dataset, and how it compares with the true ids where a server told them."""
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
        truth or tag("p", "No server told its true ids, so the rebuilt ones could not be compared with them."),
    )


def calibrated(entry: dict[str, Any]) -> tuple[object, ...]:
    """Cells of one group of a calibration."""
    low, high = entry["exact_interval"]
    return (
        entry["rows"],
        entry["exact"],
        percent(entry["exact_rate"], 2),
        Cell(f"{low:.1%} \u2013 {high:.1%}", low),
        entry["segmentation"],
        entry["text"],
    )


def duplicates(found: Overlaps) -> Html:
    """What two datasets have in common."""
    if not found:
        return tag(
            "p",
            "No accepted prompt or answer stands in two datasets, and no answer is almost the same as one of another dataset.",
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
        for names, overlap in found.items()
    ]
    heads = ("Dataset", "Also in", "Same prompt", "Same answer", "Almost the same answer", "For example")
    return table(heads, rows, caption="Accepted rows of the second dataset that are like one of the first")


def drafter(build: Build) -> Html:
    """Training curves and acceptance."""
    return join(curves(build.log), acceptance(build.evaluation))


def curves(log: list[dict[str, float | None]]) -> Html:
    """Loss, accuracy and held-out acceptance over the steps."""
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

    def series(chosen: list[str]) -> dict[str, list[float | None]]:
        keep = range(0, len(log), max(1, len(log) // 200))
        return {name: [log[index].get(name) for index in keep] for name in chosen}

    kept = [steps[index] for index in range(0, len(log), max(1, len(log) // 200))]
    return tag(
        "div",
        lines("Training loss", kept, series(losses), "step"),
        lines("Accuracy by draft position", kept, series(accuracies), "step"),
        lines(
            "Acceptance on held-out rows, estimated",
            [step for step, _value in held],
            {"acceptance": [value for _step, value in held]},
            "step",
        ),
        class_="plots",
    )


def acceptance(found: dict[str, Any] | None) -> Html:
    """What the evaluation measured."""
    if found is None:
        return tag("p", "No drafter is evaluated yet.")
    anchors = found.get("anchors", {})
    rows = [
        (name, part.get("acceptance_length"), part.get("prompts")) for name, part in found.get("datasets", {}).items()
    ]
    shares = found.get("per_position") or found.get("acceptance_per_position") or []
    positions = [(str(index), round(share * 100)) for index, share in enumerate(shares, 1)]
    return join(
        facts(
            [
                ("Acceptance length", number(found.get("acceptance_length"), 3)),
                ("Draft tokens", number(found.get("draft_tokens"))),
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
