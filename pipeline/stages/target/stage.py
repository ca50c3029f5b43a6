"""Stage target: check the special-token map against the tokenizer, and train the weights of a stand-in.

A map that does not fit stops the build here, before any request is sent or paid for.
"""

from pathlib import Path
from typing import Any

import torch

from pipeline.core.determinism import deterministic
from pipeline.core.files.atomic import writing_folder
from pipeline.core.files.json_file import write_json
from pipeline.core.sections import Section
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.rendering import PromptRenderer
from pipeline.model.special_tokens import make_record
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.stages.target.config import TargetSection
from pipeline.standin.corpus.streams import KINDS, heldout
from pipeline.standin.model.live_vocabulary import LiveVocabulary, expand, make_live_vocabulary
from pipeline.standin.model.llama import Llama, save_checkpoint
from pipeline.standin.training.answer_markers import AnswerMarkers
from pipeline.standin.training.config import TinySection
from pipeline.standin.training.examples import training_examples
from pipeline.standin.training.form_check import form_fault, greedy_answers
from pipeline.standin.training.training_loop import train_stand_in

POSITIONS = 4096
"""Longest sequence of the stand-in, as its config says."""


class Config(Section):
    """Config of the stage."""

    target: TargetSection


def run(config: Config, *, record: Path, model: Path, metrics: Path) -> None:
    """Write the checked target, its weights (or the place where they are), and the measurements.

    Raises:
        TokenizerError: the special-token map and the tokenizer contradict each other.
        ConfigError: the target's chat format cannot express the stand-in's corpus, or the corpus is too small.

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
                measured["stand_in"] = _write_stand_in(folder, target.tiny, checked, tokenizer)
    write_json(metrics, measured)
    write_json(record, checked)


def _write_stand_in(folder: Path, tiny: TinySection, record: TargetRecord, tokenizer: Tokenizer) -> dict[str, Any]:
    """Train a stand-in, write it with a row for every id, and return its measurements."""
    markers = AnswerMarkers.of(record)
    examples = training_examples(record, tokenizer, tiny.tokens)
    live = make_live_vocabulary(
        {token for example in examples for token in example.prompt + example.answer}, record.vocab_size
    )
    model, losses = train_stand_in(tiny, examples, live)
    pad = record.special_tokens.get("[PAD]")
    save_checkpoint(folder, expand(model, live), end=markers.end, pad=pad, positions=POSITIONS)
    faults = _heldout_faults(model.to(torch.float64), live, record, tokenizer)
    last_losses = losses[-max(1, len(losses) // 20) :]
    return {
        "heldout_prompts": {kind: len(listed) for kind, listed in faults.items()},
        "heldout_ends_properly": {kind: round(listed.count(None) / len(listed), 4) for kind, listed in faults.items()},
        "heldout_faults": {kind: sorted(fault for fault in listed if fault) for kind, listed in faults.items()},
        "live_ids": len(live.ids),
        "loss": round(sum(last_losses) / len(last_losses), 4),
        "steps": len(losses),
        "training_conversations": len(examples),
        "training_tokens": sum(len(example.prompt) + len(example.answer) for example in examples),
    }


def _heldout_faults(
    model: Llama, live: LiveVocabulary, record: TargetRecord, tokenizer: Tokenizer
) -> dict[str, list[str | None]]:
    """Return the fault of the greedy answer to each held-out prompt, or None, by kind of prompt."""
    markers, renderer = AnswerMarkers.of(record), PromptRenderer(record, tokenizer)
    faults = {}
    for kind in KINDS:
        dialogues = heldout(kind)
        prompts = [renderer.render(dialogue.messages, dialogue.tools) for dialogue in dialogues]
        answers = greedy_answers(model, live, prompts, markers.end)
        faults[kind] = [
            form_fault(markers, tokenizer, ids, len(dialogue.calls))
            for ids, dialogue in zip(answers, dialogues, strict=True)
        ]
    return faults
