"""`reconstruct`: turn responses into exact token ids, with the evidence for each row."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.answers.providers.habits import learn
from pipeline.answers.readings.endings import STOP_FIELDS, Bounds
from pipeline.answers.rows import RowMaker
from pipeline.core.files.json_file import read_model, write_json
from pipeline.core.files.tables import write_batches
from pipeline.core.sections import Section
from pipeline.formats.prompt_responses import PromptResponse
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.special_tokens import open_tokenizer
from pipeline.stages.reconstruct.batches import Plan, ToJob, batches, survey, workers_for
from pipeline.stages.reconstruct.sources import BuildLines, build_to_job
from pipeline.stages.reconstruct.summary import Tally


class Config(Section):
    """The keys of build/config.json that the stage reads."""

    send_tools: bool
    """True when the prompt held the tools."""
    max_tokens: int
    """Most completion tokens that each request allowed."""
    extra: dict[str, Any]
    """Further fields of each request; stop strings among them may end an answer."""

    @property
    def bounds(self) -> Bounds:
        """Return the things in each request that end an answer before its end token."""
        return Bounds(self.max_tokens, any(self.extra.get(name) for name in STOP_FIELDS))


def run(config: Config, *, prompts: Path, responses: Path, record: Path, tokens: Path, summary: Path) -> None:
    """Rebuild each response of a dataset; rows come in prompt order, at least one for each prompt.

    Raises:
        AerieError: a file is missing, the tokenizer is not the recorded one, or a worker process died.

    """
    target = read_model(record, TargetRecord)
    maker = RowMaker(target, open_tokenizer(target), send_tools=config.send_tools)
    lines = BuildLines(prompts, responses)
    workers = workers_for(responses.stat().st_size if responses.is_file() else 0, None)
    write_json(summary, rebuild_file(lines, partial(build_to_job, bounds=config.bounds), maker, tokens, workers))


def rebuild_file(
    lines: Callable[[], Iterator[PromptResponse]], to_job: ToJob, maker: RowMaker, out: Path, workers: int
) -> dict[str, Any]:
    """Read the lines twice, first to learn the providers' habits; write the table; return the summary.

    Raises:
        AerieError: a file cannot be read or written, or a worker process died.

    """
    habits = learn(survey(lines(), maker, to_job))
    tally = Tally()
    write_batches(out, SCHEMA, batches(lines(), Plan(maker, to_job, habits), tally, workers))
    return tally.document(habits)
