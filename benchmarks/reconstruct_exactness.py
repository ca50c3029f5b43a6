"""Exactness of reconstruction: every habit of a provider, every shape, canonical and sampled segmentations.

    python -m benchmarks.reconstruct_exactness [--answers 1000] [--seed 0]

Each habit answers with the same made-up answers, whose true ids are known. Beside it stands what a script of one line
does: `encode(reasoning + "</think>" + content + "<|im_end|>")` with special tokens parsed.
"""

import argparse
import re
from collections import Counter
from typing import Any

from benchmarks.answers_corpus import SyntheticAnswer, synthetic_answers
from benchmarks.hard_endings import HardEndings
from benchmarks.results import save
from pipeline.answers.lines import Job
from pipeline.answers.providers.habits import HabitCounts, learn
from pipeline.answers.rows import RowMaker
from pipeline.answers.segmented_ids import unpack
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.project.targets import open_target
from pipeline.stages.calibrate.comparison import IdComparison
from pipeline.stages.calibrate.provider_simulator import ProviderSimulator
from pipeline.stages.calibrate.scores import wilson


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    record, tokenizer = open_target("kimi_k25")
    answers = list(synthetic_answers(record, tokenizer, arguments.answers, arguments.seed))
    simulator, maker, comparison = (
        ProviderSimulator(record, tokenizer),
        RowMaker(record, tokenizer, send_tools=True),
        IdComparison(record, tokenizer),
    )
    jobs = [
        (name, answer, Job(f"{name}-{n}", {"provider": name, **make(answer.ids, "open")}))
        for name, make in simulator.habits.items()
        for n, answer in enumerate(answers)
    ]
    seen: dict[str | None, HabitCounts] = {}
    for _, _, job in jobs:
        maker.observe(job, seen, 256)
    habits = learn(seen)
    marker = re.compile("(" + "|".join(map(re.escape, record.special_tokens)) + ")")
    counts: Counter[tuple[str, ...]] = Counter()
    shown: list[str] = []
    for name, answer, job in jobs:
        row = maker.rows([job], habits)[0]
        ids = unpack(row.completion)
        canonical = comparison.canonical(answer.ids, "open")
        right = ids == answer.ids
        kind = "canonical" if canonical else "sampled"
        counts[name, kind, row.evidence or "none", row.status, "right" if right else "wrong"] += 1
        counts["naive", kind, "right" if naive(job, tokenizer, marker) == answer.ids else "wrong"] += 1
        if not right and row.evidence in ("ids", "logprobs", "count") and (canonical or row.status == "accept"):
            shown.append(
                f"{job.id} {row.evidence} {row.status} {row.reason} {row.notes} "
                f"{comparison.first_difference(ids, answer.ids)}"
            )
    hard = HardEndings(record, tokenizer, arguments.seed)
    endings = {kind: hard_scores(hard, kind, answers, maker, comparison) for kind in hard.kinds}
    document = {
        "answers": len(jobs),
        "habits": len(simulator.habits),
        **table(counts, list(simulator.habits)),
        "hard_endings": endings,
        "recall": recall(list(endings.values())),
    }
    save("reconstruct_exactness", document)
    for line in shown[:20]:
        print("WRONG", line)
    print(text_table(document))


def hard_scores(
    hard: HardEndings, kind: str, answers: list[SyntheticAnswer], maker: RowMaker, comparison: IdComparison
) -> dict[str, int]:
    """Rebuild the rows of one kind as a file of their own; return how many are accepted, wrong, and decided."""
    rows = list(hard.rows(kind, answers))
    seen: dict[str | None, HabitCounts] = {}
    for row in rows:
        maker.observe(row.job, seen, 256)
    habits = learn(seen)
    scores = Counter[str]()
    for row in rows:
        rebuilt = maker.rows([row.job], habits)[0]
        right = unpack(rebuilt.completion) == row.ids
        canonical = comparison.canonical(row.ids, "open")
        accepted = rebuilt.status == "accept"
        proven = rebuilt.evidence in ("ids", "logprobs")
        scores["rows"] += 1
        scores["accepted"] += accepted
        scores["wrong_ids"] += proven and not right
        scores["wrong_count_canonical"] += rebuilt.evidence == "count" and canonical and not right
        scores["wrong_count_sampled"] += rebuilt.evidence == "count" and not canonical and not right
        scores["decided"] += row.decided
        scores["decided_accepted"] += row.decided and accepted and right
        if not right and (proven or (rebuilt.evidence == "count" and canonical)):
            difference = comparison.first_difference(unpack(rebuilt.completion), row.ids)
            print("WRONG", rebuilt.id, rebuilt.evidence, rebuilt.status, rebuilt.reason, rebuilt.notes, difference)
    return dict(scores)


def recall(scores: list[dict[str, int]]) -> float:
    """Return the share of the rows that the bill decides which are accepted and right."""
    decided = sum(score["decided"] for score in scores)
    return round(sum(score["decided_accepted"] for score in scores) / decided, 4)


def naive(job: Job, tokenizer: Tokenizer, marker: re.Pattern[str]) -> list[int]:
    """What one line of code makes of the answer: special tokens are parsed wherever their text stands."""
    message = job.body["choices"][0]["message"]
    whole = (message["reasoning"] or "") + "</think>" + (message["content"] or "") + "<|im_end|>"
    ids: list[int] = []
    for part in marker.split(whole):
        ids += (
            [tokenizer.special_ids[part]] if part in tokenizer.special_ids else tokenizer.encode(part) if part else []
        )
    return ids


def table(counts: Counter[tuple[str, ...]], names: list[str]) -> dict[str, Any]:
    """Rates by habit, and by evidence."""

    def total(*wanted: str | None) -> int:
        return sum(
            n
            for key, n in counts.items()
            if len(key) == len(wanted) and all(w is None or w == k for w, k in zip(wanted, key, strict=True))
        )

    by_habit = {}
    for name in names:
        rows, accepted = total(name, None, None, None, None), total(name, None, None, "accept", None)
        by_habit[name] = {
            "rows": rows,
            "accepted": accepted,
            "accepted_wrong_canonical": total(name, "canonical", None, "accept", "wrong"),
            "accepted_wrong_sampled": total(name, "sampled", None, "accept", "wrong"),
            "exact": total(name, None, None, None, "right"),
        }
    by_evidence = {}
    for evidence in ("ids", "logprobs", "count", "text", "none"):
        for kind in ("canonical", "sampled"):
            rows, wrong = total(None, kind, evidence, None, None), total(None, kind, evidence, None, "wrong")
            low, high = wilson(wrong, rows)
            by_evidence[f"{evidence}, {kind}"] = {
                "rows": rows,
                "wrong": wrong,
                "wrong_interval": [round(low, 5), round(high, 5)],
            }
    naive_rows = {
        kind: {"rows": total("naive", kind, None), "exact": total("naive", kind, "right")}
        for kind in ("canonical", "sampled")
    }
    return {"by_habit": by_habit, "by_evidence": by_evidence, "naive": naive_rows}


def text_table(document: dict[str, Any]) -> str:
    """The table for a terminal."""
    lines = [f"{'habit':<34}{'rows':>7}{'accepted':>10}{'wrong can.':>12}{'wrong sampl.':>14}{'exact':>8}"]
    for name, e in document["by_habit"].items():
        lines.append(
            f"{name:<34}{e['rows']:>7}{e['accepted']:>10}{e['accepted_wrong_canonical']:>12}{e['accepted_wrong_sampled']:>14}{e['exact']:>8}"
        )
    lines.append(f"{'evidence':<34}{'rows':>7}{'wrong':>10}   95 % interval of the wrong rate")
    for name, e in document["by_evidence"].items():
        lines.append(f"{name:<34}{e['rows']:>7}{e['wrong']:>10}   {e['wrong_interval']}")
    lines.append(
        f"{'kind of ending, alone in its file':<46}{'rows':>6}{'accept':>8}{'wrong ids':>11}{'wrong count':>13}"
        f"{'sampled':>9}{'decided':>9}{'accepted':>10}"
    )
    for name, e in document["hard_endings"].items():
        lines.append(
            f"{name:<46}{e['rows']:>6}{e['accepted']:>8}{e['wrong_ids']:>11}{e['wrong_count_canonical']:>13}"
            f"{e['wrong_count_sampled']:>9}{e['decided']:>9}{e['decided_accepted']:>10}"
        )
    lines.append(f"recall of the rows that the bill decides: {document['recall']}")
    for kind, e in document["naive"].items():
        lines.append(f"{'naive, ' + kind:<34}{e['rows']:>7}{e['rows'] - e['exact']:>10}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
