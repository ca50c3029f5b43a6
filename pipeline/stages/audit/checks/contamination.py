"""The check for overlap with the held-out prompts on which the drafter is evaluated."""

from collections.abc import Iterator

import numpy as np

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import ContaminationSection
from pipeline.stages.audit.features.grams import sequence_hash
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.heldout import question, to_ids


def contamination(batch: Batch, settings: ContaminationSection) -> Iterator[Complaint]:
    heldout = batch.context.heldout
    if heldout is None:
        return
    for row in range(batch.size):
        text = question(batch.prompts[row])
        asked = batch.prompt[row] if text is None else to_ids(text, batch.context.tokenizer)
        if sequence_hash(asked) in heldout.questions:
            yield Complaint(row, None, "the prompt is one of the held-out prompts")
            continue
        for part, ids in (("prompt", asked), ("answer", batch.completion[row])):
            shared = heldout.shared(ids)
            if shared.any() and shared.mean() > settings.max_rate:
                position = int(np.argmax(shared)) if part == "answer" else None
                yield Complaint(row, position, f"{shared.mean():.0%} of the {part}'s {heldout.n}-grams are held-out")
                break
