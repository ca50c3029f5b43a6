"""Checks of an answer's provider, model and end, and of the dataset's expectations."""

from collections.abc import Iterable, Iterator

import numpy as np

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import CheckSection, ModelSection, RefusalSection
from pipeline.stages.audit.features.refusals import is_refusal, plain_opening
from pipeline.stages.audit.inputs.batch import Batch


def _plain(name: str) -> str:
    """Reduce a provider's name or tag to letters and digits: `deepinfra` for `DeepInfra` and `deepinfra/turbo`."""
    return "".join(char for char in name.split("/")[0].casefold() if char.isalnum())


def same_provider(rule: str, names: Iterable[str]) -> bool:
    """Return whether an entry of the policy means the provider with these names."""
    return _plain(rule) in set(map(_plain, names))


def provider_policy(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    allow, deny = batch.context.allow, batch.context.deny
    for row, (provider, answer) in enumerate(zip(batch.column("provider"), batch.answers, strict=True)):
        names = [provider, *batch.context.endpoints.tags.get(provider, [])] if provider else []
        if answer.policy:
            yield Complaint(row, None, answer.policy)
        elif allow and not any(same_provider(rule, names) for rule in allow):
            yield Complaint(row, None, f"answered by {provider!r}; allowed are {list(allow)}")
        elif any(same_provider(rule, names) for rule in deny if "/" not in rule):
            # a rule about one endpoint cannot apply: an answer does not say which endpoint gave it
            yield Complaint(row, None, f"answered by {provider!r}, which the policy denies")


def model_name(batch: Batch, settings: ModelSection) -> Iterator[Complaint]:
    for row, answer in enumerate(batch.answers):
        if settings.admit and answer.model is not None and answer.model not in settings.admit:
            yield Complaint(row, None, f"answered by model {answer.model!r}; admitted are {settings.admit}")


def answer_error(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row, (finish, answer) in enumerate(zip(batch.column("finish_reason"), batch.answers, strict=True)):
        if answer.error or finish == "error":
            yield Complaint(row, None, answer.error or "finish_reason is error")


def rejected(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row, (status, reason) in enumerate(zip(batch.column("status"), batch.column("reason"), strict=True)):
        if status == "reject":
            yield Complaint(row, None, reason or "no reason given")


def truncated(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    lengths = batch.completion.lengths
    for row in np.flatnonzero(batch.cut).tolist():
        yield Complaint(
            row,
            max(int(lengths[row]) - 1, 0) if lengths[row] else None,
            f"cut by the token limit after {lengths[row]} tokens",
        )


def content_filter(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row, finish in enumerate(batch.column("finish_reason")):
        if finish == "content_filter":
            yield Complaint(row, None, "finish_reason is content_filter")


def refusal(batch: Batch, settings: RefusalSection) -> Iterator[Complaint]:
    openings = tuple(map(plain_opening, settings.openings))
    for row, answer in enumerate(batch.answers):
        text = plain_opening(batch.contents[row])
        if answer.refusal:
            yield Complaint(row, None, f"refused: {answer.refusal[:120]}")
        elif is_refusal(text) or text.startswith(openings):
            yield Complaint(row, None, f"begins with {text[:60]!r}")


def empty_content(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    for row in np.flatnonzero(batch.present & ~batch.cut).tolist():
        if not batch.contents[row].strip() and not len(batch.markup[row].calls):
            yield Complaint(row, None, "neither text nor a tool call")


def expect_reasoning(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    wanted = batch.context.expect.reasoning
    close = batch.hits(batch.context.role("think_close")).first.tolist()
    for row in np.flatnonzero(batch.present).tolist() if wanted != "optional" else []:
        has = close[row] > 0 or bool(batch.cut[row] and batch.opened[row])
        if has != (wanted == "required"):
            yield Complaint(row, None, f"reasoning is {wanted}, and there is {'some' if has else 'none'}")


def expect_tool_calls(batch: Batch, _settings: CheckSection) -> Iterator[Complaint]:
    wanted = batch.context.expect.tool_calls
    opens = batch.hits(batch.context.role("call_open"))
    for row in np.flatnonzero(batch.present).tolist() if wanted != "optional" else []:
        found = int(opens.counts[row])
        if wanted == "forbidden" and found:
            yield Complaint(row, int(opens.first[row]), f"tool calls are forbidden, and there are {found}")
        elif wanted == "required" and not found and not batch.cut[row]:
            yield Complaint(row, None, "tool calls are required, and there is none")
