"""`python -m pipeline calibrate --target NAME --truth truth.jsonl --out report.json`: how exact reconstruction is, on answers whose ids are known."""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.answers.assemble import unpack
from pipeline.answers.lines import Job, file_job, load
from pipeline.answers.providers.habits import SAMPLE_ROWS, Seen, learn
from pipeline.answers.rows import Row, RowMaker
from pipeline.answers.rungs.returned_ids import as_ids
from pipeline.core.errors import InputError
from pipeline.core.files.json_file import write_json
from pipeline.core.files.jsonl import read_lines
from pipeline.core.files.overwrite_check import refuse_overwriting
from pipeline.formats.schema.target import TargetRecord
from pipeline.project.targets import open_target
from pipeline.stages.calibrate.compare import Judge, judged
from pipeline.stages.calibrate.scores import Scores
from pipeline.stages.calibrate.simulate import Simulator
from pipeline.stages.calibrate.table import table

Truth = tuple[Job, list[int], str | None]
"""The line as a job without its true ids, the true ids, and the line's dataset."""


def main(argv: list[str]) -> int:
    """Compare; write the report; print its table.

    Raises:
        AerieError: the file or target is missing or wrong, or no line holds true ids.

    """
    arguments = _parser().parse_args(argv)
    refuse_overwriting([arguments.truth], [arguments.out])
    record, tokenizer = open_target(arguments.target)
    judge, simulator = Judge(record, tokenizer), Simulator(record, tokenizer)
    maker = RowMaker(record, tokenizer, send_tools=True)
    path: Path = arguments.truth

    def truths() -> Iterator[Truth]:
        return _truths(path, record)

    def received() -> Iterator[Truth]:
        return (truth for truth in truths() if truth[0].body is not None)

    report: dict[str, Any] = {"version": 1, "truth": "output_ids", "lines": 0, "without_truth": 0, "simulated": {}}
    for _ in read_lines(path):
        report["lines"] += 1
    known = sum(1 for _ in truths())
    report["without_truth"] = report["lines"] - known
    if not known:
        raise InputError(
            f"{path}: no line has output_ids, a list of ids; nothing to calibrate against ({report['lines']} lines read)"
        )
    report["received"] = _scored(received, maker, judge, record)
    for name, make in simulator.habits.items():
        report["simulated"][name] = _scored(_simulated(truths, name, make, simulator, maker), maker, judge, record)
    write_json(arguments.out, report)
    _print(report)
    return 0


def _truths(path: Path, record: TargetRecord) -> Iterator[Truth]:
    """Lines with true ids; the ids are taken out of the job, so that rebuilding cannot see them.

    Raises:
        InputError: an id that the target does not have: the file is another target's, or damaged.

    """
    for number, line in read_lines(path):
        job = file_job(number, line)
        if (ids := as_ids(job.output_ids)) is not None:
            if outside := [token for token in ids if not 0 <= token < record.vocab_size]:
                raise InputError(
                    f"{path}:{number}: output_ids has {outside[0]}; target {record.name!r} has the ids 0 to {record.vocab_size - 1}"
                )
            value = load(line)
            dataset = value.get("dataset")
            yield job._replace(output_ids=None), ids, dataset if isinstance(dataset, str) else None


def _simulated(
    truths: Callable[[], Iterator[Truth]],
    name: str,
    make: Callable[[list[int], str], dict[str, Any]],
    simulator: Simulator,
    maker: RowMaker,
) -> Callable[[], Iterator[Truth]]:
    def lines() -> Iterator[Truth]:
        for job, ids, dataset in truths():
            thinking = maker.thinking(job) or simulator.thinking
            yield job._replace(body={"provider": name, **make(ids, thinking)}, rejects=()), ids, dataset

    return lines


def _scored(
    lines: Callable[[], Iterator[Truth]], maker: RowMaker, judge: Judge, record: TargetRecord
) -> dict[str, Any]:
    """Rebuild and compare, habits learned first."""
    seen: dict[str | None, Seen] = {}
    for job, _, _ in lines():
        maker.observe(job, seen, SAMPLE_ROWS)
    habits = learn(seen)
    scores = Scores()
    for job, ids, dataset in lines():
        row = maker.rows([job], habits)[0]
        judged(judge, scores, _columns(row), ids, record, dataset)
    return scores.document()


def _columns(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "prompt_ids": unpack(row.prompt),
        "completion_ids": unpack(row.completion),
        "evidence": row.evidence,
        "provider": row.provider,
        "status": row.status,
    }


def _print(report: dict[str, Any]) -> None:
    if report["without_truth"]:
        print(
            f"{report['without_truth']} of {report['lines']} lines have no output_ids that are a list of ids, and are left out"
        )
    if report["received"].get("rows"):
        print(table(report["received"], "responses as received"))
    print("simulated from the true ids, by habit of the provider")
    print(f"  {'':<32}{'rows':>7}{'accepted':>10}{'of these wrong':>16}   exact among all, 95 % interval")
    for name, entry in report["simulated"].items():
        accepted = entry["by_status"].get("accept", {"rows": 0, "exact": 0})
        low, high = entry["exact_interval"]
        wrong = accepted["rows"] - accepted["exact"]
        print(
            f"  {name:<32}{entry['rows']:>7}{accepted['rows']:>10}{wrong:>16}   {entry['exact_rate']:8.2%}  [{low:.2%}, {high:.2%}]"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline calibrate", description=__doc__)
    parser.add_argument("--target", required=True, help="a name under conf/target/, or the path of a fingerprint.json")
    parser.add_argument(
        "--truth",
        required=True,
        type=Path,
        help="JSONL: {id, output_ids, response?, messages?, tools?, dataset?} a line",
    )
    parser.add_argument("--out", required=True, type=Path, help="report.json to write")
    return parser
