"""Calibration on a file of answers whose true ids are known."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.answers.lines import Job, file_job, load
from pipeline.answers.providers.habits import SAMPLE_ROWS, HabitCounts, learn
from pipeline.answers.readings.chat_formats import Thinking
from pipeline.answers.rows import PackedRow, RowMaker
from pipeline.answers.rungs.returned_ids import as_ids
from pipeline.answers.segmented_ids import unpack
from pipeline.core.errors import InputError
from pipeline.core.files.jsonl import read_lines
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.calibrate.comparison import IdComparison, score_row
from pipeline.stages.calibrate.provider_simulator import Body, ProviderSimulator
from pipeline.stages.calibrate.scores import Scores


class TrueAnswer(NamedTuple):
    """A line with its true ids."""

    job: Job
    """The line without its true ids, so that rebuilding cannot see them."""
    ids: list[int]
    dataset: str | None


TrueAnswers = Callable[[], Iterator[TrueAnswer]]
"""Reads the answers from the start."""


class TruthFile:
    """A JSONL file of answers whose lines hold true ids, for one target."""

    def __init__(self, path: Path, record: TargetRecord, tokenizer: Tokenizer) -> None:
        self._path = path
        self._record = record
        self._comparison = IdComparison(record, tokenizer)
        self._simulator = ProviderSimulator(record, tokenizer)
        self._maker = RowMaker(record, tokenizer, send_tools=True)

    def report(self) -> dict[str, Any]:
        """Return the scores of the answers as received, and as each simulated provider would have sent them.

        Raises:
            InputError: the file is missing, holds no true ids, or has an id that the target does not have.
        """
        lines = sum(1 for _ in read_lines(self._path))
        with_truth = sum(1 for _ in self._answers())
        if not with_truth:
            raise InputError(
                f"{self._path}: no line has output_ids, a list of ids; "
                f"nothing to calibrate against ({lines} lines read)"
            )
        return {
            "version": 1,
            "truth": "output_ids",
            "lines": lines,
            "without_truth": lines - with_truth,
            "simulated": {
                habit: self._scores(partial(self._simulated, habit, make_body))
                for habit, make_body in self._simulator.habits.items()
            },
            "received": self._scores(self._received),
        }

    def _answers(self) -> Iterator[TrueAnswer]:
        """Yield the lines with true ids.

        Raises:
            InputError: an id that the target does not have: the file belongs to another target, or is damaged.

        """
        for number, line in read_lines(self._path):
            job = file_job(number, line)
            ids = as_ids(job.output_ids)
            if ids is None:
                continue
            if unknown := [token for token in ids if not 0 <= token < self._record.vocab_size]:
                raise InputError(
                    f"{self._path}:{number}: output_ids has {unknown[0]}; "
                    f"target {self._record.name!r} has the ids 0 to {self._record.vocab_size - 1}"
                )
            dataset = load(line).get("dataset")
            yield TrueAnswer(job._replace(output_ids=None), ids, dataset if isinstance(dataset, str) else None)

    def _received(self) -> Iterator[TrueAnswer]:
        return (answer for answer in self._answers() if answer.job.body is not None)

    def _simulated(self, habit: str, make_body: Callable[[list[int], Thinking], Body]) -> Iterator[TrueAnswer]:
        """Yield each answer as a provider with this habit would have sent it."""
        for answer in self._answers():
            thinking = self._maker.thinking(answer.job) or self._simulator.thinking
            body = {"provider": habit, **make_body(answer.ids, thinking)}
            yield answer._replace(job=answer.job._replace(body=body, rejects=()))

    def _scores(self, answers: TrueAnswers) -> dict[str, Any]:
        """Learn the providers' habits, rebuild each answer, and compare it with its true ids."""
        counts: dict[str | None, HabitCounts] = {}
        for answer in answers():
            self._maker.observe(answer.job, counts, SAMPLE_ROWS)
        habits = learn(counts)
        scores = Scores()
        for answer in answers():
            row = self._maker.rows([answer.job], habits)[0]
            score_row(self._comparison, scores, _columns(row), answer.ids, answer.dataset)
        return scores.document()


def _columns(row: PackedRow) -> dict[str, Any]:
    """Return the columns of tokens.parquet that scoring reads."""
    return {
        "id": row.id,
        "prompt_ids": unpack(row.prompt),
        "completion_ids": unpack(row.completion),
        "evidence": row.evidence,
        "provider": row.provider,
        "status": row.status,
    }
