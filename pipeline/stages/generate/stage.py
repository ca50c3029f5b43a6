"""generate: an answer for every prompt, paid once. The only stage that speaks to the outside, and the only one that costs money."""

from pathlib import Path

from pipeline.core.errors import BudgetError
from pipeline.core.home import store_folder
from pipeline.core.process.messages import tell
from pipeline.core.sections import Section
from pipeline.stages.generate.config import BudgetSection, ProviderSection, SamplingSection
from pipeline.stages.generate.ledger import ledger
from pipeline.stages.generate.ledger.lock import only_writer
from pipeline.stages.generate.ledger.restore import restore
from pipeline.stages.generate.limits.free_disk import Room
from pipeline.stages.generate.output.outputs import Files, Outputs
from pipeline.stages.generate.output.report import plan_lines
from pipeline.stages.generate.provider.server import admission_of, endpoints_document, identity, running_server
from pipeline.stages.generate.requests.request import Asker
from pipeline.stages.generate.requests.survey import Survey, survey


class Config(Section):
    """What the stage is given."""

    sampling: SamplingSection
    send_tools: bool
    dataset_budget: BudgetSection
    budget: BudgetSection
    provider: ProviderSection


def run(
    config: Config,
    *,
    prompts: Path,
    record: Path,
    model: Path,
    responses: Path,
    summary: Path,
    timings: Path,
    timings_summary: Path,
) -> None:
    """Ask what the ledger cannot answer, and write every prompt's outcome.

    Raises:
        AerieError: the provider refuses, the budget ends and the config calls that a failure, the disk is full, ...
        KeyboardInterrupt: a signal came; what was answered is kept.

    """
    provider = config.provider
    asker = Asker(config.sampling, provider, send_tools=config.send_tools, identity=identity(provider, model))
    folder = store_folder()
    with only_writer(folder, wait=provider.wait_for_store, say=tell), ledger.opened(folder) as db:
        if orphans := ledger.settle_orphans(db):
            tell(f"generate: {orphans} requests of a generator that died are booked as uncertain spend")
        outputs = Outputs(
            config.sampling,
            provider,
            asker,
            db,
            prompts=prompts,
            files=Files(responses, summary, timings, timings_summary),
        )
        if outputs.responses_from_elsewhere():
            for line in restore(responses, timings, db, dataset=outputs.dataset, purse=outputs.purse).lines(responses):
                tell(line)
        before = survey(prompts, asker, db, config.sampling.max_tokens)
        if before.new == 0:
            tell(f"generate: the ledger answers all {before.prompts} prompts; nothing is sent")
            outputs.refresh(before)
        elif (shortage := Room(folder, asker.most_tokens).shortage(1)) is not None:
            outputs.write()  # what was answered before is no worse for it
            raise shortage
        else:
            with running_server(provider, model, record) as served:
                _ask(config, served, outputs, before, folder)


def _ask(config: Config, provider: ProviderSection, outputs: Outputs, before: Survey, folder: Path) -> None:
    from pipeline.stages.generate.session import (  # the network client is slow to import, and a rerun needs none
        Ending,
        drive,
    )

    document = None if provider.kind == "openai" else endpoints_document(provider)
    outputs.remember_endpoints(document)
    admission = admission_of(
        provider, document, needs=outputs.asker.parameters(), max_tokens=config.sampling.max_tokens
    )
    for line in plan_lines(before, admission, provider, config.dataset_budget, config.budget, outputs.spending()):
        tell(line)
    engine = drive(provider, outputs, admission, before, folder, dataset=config.dataset_budget, build=config.budget)
    if engine.ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt
    written = outputs.write(engine.unsaved)
    if engine.cap is not None:
        cost = (
            "what they can cost is not known"
            if written.remaining_usd is None
            else f"they can cost ${written.remaining_usd:.4f} at most"
        )
        tell(
            f"generate: the budget ended: {engine.cap}; {written.prompts - written.answered} prompts have no answer, and {cost}"
        )
    if engine.error is not None:
        raise engine.error
    if engine.cap is not None and engine.cap_fails:
        raise BudgetError(
            f"{engine.cap}; raise the cap in conf/ to go on (on_exhausted: stop would have called this a success)"
        )
