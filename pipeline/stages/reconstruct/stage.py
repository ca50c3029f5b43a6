"""`reconstruct`: responses to exact token ids, with the evidence for each row."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.answers.providers.habits import learn
from pipeline.answers.rows import RowMaker
from pipeline.core.files.json_file import read_model, to_json, write_json
from pipeline.core.files.tables import write_batches
from pipeline.core.reuse.cache import open_cache
from pipeline.core.sections import Section
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.special_tokens import open_tokenizer
from pipeline.stages.reconstruct.batches import Plan, ToJob, batches, survey, workers_for
from pipeline.stages.reconstruct.kept import KeptLines, Line
from pipeline.stages.reconstruct.sources import BuildLines, build_to_job
from pipeline.stages.reconstruct.summary import Tally


class Config(Section):
    """Keys of build/config.json that the stage is given."""

    send_tools: bool
    """Whether the prompt held the tools."""


def run(config: Config, *, prompts: Path, responses: Path, record: Path, tokens: Path, summary: Path) -> None:
    """Rebuild every response of a dataset; one row a prompt, in prompt order.

    Raises:
        AerieError: a file is missing, or the tokenizer is not the recorded one.

    """
    target = read_model(record, TargetRecord)
    maker = RowMaker(target, open_tokenizer(target), send_tools=config.send_tools)
    lines = BuildLines(prompts, responses)
    workers = workers_for(responses.stat().st_size if responses.is_file() else 0, None)
    with open_cache("reconstruct", to_json([target.model_dump(mode="json"), config.model_dump(mode="json")])) as kept:
        document = rebuild_file(lines, build_to_job, maker, tokens, workers, KeptLines(kept) if kept.on else None)
    write_json(summary, document)


def rebuild_file(
    lines: Callable[[], Iterator[Line]],
    to_job: ToJob,
    maker: RowMaker,
    out: Path,
    workers: int,
    kept: KeptLines | None = None,
) -> dict[str, Any]:
    """Read the lines twice, first for the providers' habits; write the table; return the summary."""
    seen = survey(lines(), maker, to_job, kept)
    habits = learn(seen)
    if kept is not None:
        kept.use(habits)
    tally = Tally()
    write_batches(out, SCHEMA, batches(lines(), Plan(maker, to_job, habits), tally, workers, kept=kept))
    if kept is not None:
        kept.close()
    return tally.document(habits)
