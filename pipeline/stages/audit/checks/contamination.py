"""The check for overlap with the held-out prompts on which the drafter is evaluated."""

from collections.abc import Iterator

import numpy as np

from pipeline.stages.audit.checks.check import Complaint
from pipeline.stages.audit.config import ContaminationSection
from pipeline.stages.audit.features.words import word_ids, words_of
from pipeline.stages.audit.inputs.batch import Batch
from pipeline.stages.audit.inputs.heldout import to_ids
from pipeline.stages.audit.inputs.messages import question


def contamination(batch: Batch, settings: ContaminationSection) -> Iterator[Complaint]:
    heldout = batch.context.heldout
    if heldout is None:
        return
    for row in range(batch.size):
        messages = [word_ids(words_of(text)) for text in batch.messages[row]]
        if any(map(heldout.is_question, messages)):
            yield Complaint(row, None, "a message of the prompt is one of the held-out prompts")
            continue
        if any(map(heldout.holds_question, messages)):
            yield Complaint(row, None, "a message of the prompt holds one of the held-out prompts")
            continue
        shares = [heldout.shared_words(words) for words in messages]
        most = max((float(shared.mean()) for shared in shares if len(shared)), default=0.0)
        if most > settings.max_rate:
            yield Complaint(row, None, f"{most:.0%} of a message's {heldout.n}-grams of words are held-out")
            continue
        text = question(batch.prompts[row])
        asked = batch.prompt[row] if text is None else to_ids(text, batch.context.tokenizer)
        for part, ids in (("prompt", asked), ("answer", batch.completion[row])):
            shared = heldout.shared(ids)
            if shared.any() and shared.mean() > settings.max_rate:
                position = int(np.argmax(shared)) if part == "answer" else None
                yield Complaint(row, position, f"{shared.mean():.0%} of the {part}'s {heldout.n}-grams are held-out")
                break
