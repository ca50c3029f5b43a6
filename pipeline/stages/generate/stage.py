"""generate: an answer for every prompt, paid for once.

It is the only stage that speaks to a provider, and the only one that costs money.
"""

from pathlib import Path

from pipeline.core.errors import BudgetError
from pipeline.core.home import store_folder
from pipeline.core.process.messages import tell
from pipeline.core.sections import Section
from pipeline.stages.generate.config import BudgetSection, ProviderSection, SamplingSection
from pipeline.stages.generate.ledger.connection import opened
from pipeline.stages.generate.ledger.lock import only_writer
from pipeline.stages.generate.ledger.restore import Account, restore
from pipeline.stages.generate.ledger.statements import settle_orphans
from pipeline.stages.generate.limits.free_disk import FreeDisk
from pipeline.stages.generate.output.outputs import GenerateOutputs, OutputFiles
from pipeline.stages.generate.output.report import plan_lines
from pipeline.stages.generate.provider.server import admission_of, endpoints_document, identity, running_server
from pipeline.stages.generate.requests.request import RequestBuilder
from pipeline.stages.generate.requests.survey import Survey, survey


class Config(Section):
    """Config of the stage."""

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
    """Ask every prompt that the ledger has not settled, and write every prompt's outcome.

    Raises:
        AerieError: the provider refuses, the budget ends and the config calls that a failure, the disk is full, ...
        KeyboardInterrupt: a signal arrived; all answers so far are kept.

    """
    provider = config.provider
    builder = RequestBuilder(
        config.sampling, provider, send_tools=config.send_tools, identity=identity(provider, model)
    )
    files = OutputFiles(responses, summary, timings, timings_summary)
    folder = store_folder()
    with only_writer(folder, wait=provider.wait_for_store, say=tell), opened(folder) as db:
        if orphans := settle_orphans(db):
            tell(f"generate: {orphans} requests of a generator that died are booked as uncertain spend")
        outputs = GenerateOutputs(builder, db, prompts=prompts, files=files)
        if outputs.responses_from_elsewhere():
            account = Account.restored(outputs.dataset, outputs.purse)
            for line in restore(responses, timings, db, account).lines(responses):
                tell(line)
        before = survey(prompts, builder, db)
        if before.new == 0:
            tell(f"generate: the ledger answers all {before.prompts} prompts; nothing is sent")
            outputs.refresh(before)
        elif (shortage := FreeDisk(folder, builder.most_tokens).shortage(1)) is not None:
            outputs.write()  # the answers so far can still be written
            raise shortage
        else:
            with running_server(provider, model, record) as served:
                _ask(config, served, outputs, before, folder)


def _ask(config: Config, provider: ProviderSection, outputs: GenerateOutputs, before: Survey, folder: Path) -> None:
    """Ask the new prompts; ``provider`` has the address of the running server."""
    # the network client is slow to import, and a run without new prompts does not need it
    from pipeline.stages.generate.session import Ending, Session, run_session

    document = None if provider.kind == "openai" else endpoints_document(provider)
    outputs.remember_endpoints(document)
    admission = admission_of(
        provider, document, needs=outputs.builder.parameters(), max_tokens=config.sampling.max_tokens
    )
    caps = outputs.caps(config.dataset_budget, config.budget)
    excess = outputs.known_excess(admission)
    for line in plan_lines(before, admission, provider, caps, excess):
        tell(line)
    engine = run_session(Session(provider, outputs, admission, before, caps, excess, folder))
    if engine.ending is Ending.INTERRUPTED:
        raise KeyboardInterrupt
    written = outputs.write(engine.unsaved)
    if engine.cap is not None:
        cost = (
            "their cost is not known"
            if written.remaining_usd is None
            else f"they can cost ${written.remaining_usd:.4f} at most"
        )
        tell(
            f"generate: the budget ended: {engine.cap}; {written.prompts - written.answered} prompts have no answer, "
            f"and {cost}"
        )
    if engine.error is not None:
        raise engine.error
    if engine.cap is not None and engine.cap_fails:
        raise BudgetError(
            f"{engine.cap}; raise the cap in conf/ to continue (on_exhausted: stop would have called this a success)"
        )
