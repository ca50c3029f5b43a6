"""Stage target: check the tokenizer against the special-token map, and make the weights of a stand-in.

A map that does not fit stops the build here, before anything is asked or paid for.
"""

from pathlib import Path
from typing import Any

import torch

from pipeline.core.determinism import deterministic
from pipeline.core.files import write_json, writing_folder
from pipeline.core.sections import Section
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.special_tokens import make_record
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.target.config import TargetSection
from pipeline.standin.corpus.corpus import KINDS, heldout
from pipeline.standin.model.live_vocabulary import expand, live_of
from pipeline.standin.model.llama import save_checkpoint
from pipeline.standin.training.answer_markers import Marks
from pipeline.standin.training.config import TinySection
from pipeline.standin.training.examples import to_example, training_examples
from pipeline.standin.training.form_check import fault as fault_of
from pipeline.standin.training.form_check import greedy
from pipeline.standin.training.learn import learn

POSITIONS = 4096
"""Longest sequence that the stand-in says it takes."""


class Config(Section):
    """What this stage is given."""

    target: TargetSection


def run(config: Config, *, record: Path, model: Path, metrics: Path) -> None:
    """Write the checked target, its weights (or where they are), and what was measured.

    Raises:
        TokenizerError: the special-token map and the tokenizer contradict each other.

    """
    target = config.target
    tokenizer = load_tokenizer(target)
    checked = make_record(target, tokenizer)
    measured: dict[str, Any] = {
        "target": target.name,
        "special_tokens_checked": len(target.special_tokens),
        "tokenizer_sha256": checked.tokenizer_sha256,
    }
    with writing_folder(model) as folder:
        if target.tiny is None:
            write_json(
                folder / "target.json",
                {"model": target.model, "revision": target.revision, "trust_remote_code": target.trust_remote_code},
            )
        else:
            with deterministic():
                measured["stand_in"] = _make_stand_in(target.tiny, checked, tokenizer, folder)
    write_json(metrics, measured)
    write_json(record, checked)


def _make_stand_in(tiny: TinySection, record: TargetRecord, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Train it, write it with a row for every id, and say how well it keeps the form."""
    marks = Marks.of(record)
    examples = training_examples(record, tokenizer, tiny.tokens)
    live = live_of({token for example in examples for token in example.prompt + example.answer}, record.vocab_size)
    trained, losses = learn(tiny, examples, live)
    pad = record.special_tokens.get("[PAD]")
    save_checkpoint(
        folder, expand(trained, live), vocab_size=record.vocab_size, end=marks.end, pad=pad, positions=POSITIONS
    )
    renderer = PromptRenderer(record, tokenizer)
    ends_properly, faults = {}, {}
    for kind in KINDS:
        conversations = heldout(kind)
        prompts = [to_example(record, tokenizer, renderer, conversation).prompt for conversation in conversations]
        answers = greedy(trained.to(torch.float64), live, prompts, marks.end)
        found = [
            fault_of(marks, tokenizer, ids, len(talk.calls)) for ids, talk in zip(answers, conversations, strict=True)
        ]
        ends_properly[kind] = round(found.count(None) / len(found), 4)
        faults[kind] = sorted(why for why in found if why)
    last = losses[-max(1, len(losses) // 20) :]
    return {
        "heldout_prompts": {kind: len(heldout(kind)) for kind in KINDS},
        "heldout_ends_properly": ends_properly,
        "heldout_faults": faults,
        "live_ids": len(live.ids),
        "loss": round(sum(last) / len(last), 4),
        "steps": len(losses),
        "training_conversations": len(examples),
        "training_tokens": sum(len(example.prompt) + len(example.answer) for example in examples),
    }
