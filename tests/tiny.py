"""Small real objects for the tests of hidden states and drafters: a random target, rows, a drafter."""

from pathlib import Path
from typing import Any

import torch
from ruamel.yaml import YAML

from pipeline.core.files.json_file import write_json
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.drafter import Drafter, initialize
from pipeline.drafter.unroll import Pack
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.stages.extract import stage as extract
from pipeline.stages.extract.config import EngineSection, ExtractSection
from pipeline.stages.train.config import TrainSection
from tests.conftest import DEFAULTS
from tests.parquet import write_rows

LAYERS, WIDTH, VOCAB = 8, 32, 300

ROWS = [("long", 9, 40), ("short", 3, 5), ("middle", 12, 20), ("other", 5, 14), ("same", 3, 5), ("tail", 7, 11)]
"""Id, number of prompt tokens, number of completion tokens."""


def save_target(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a random Llama as a checkpoint."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "initializer_range": 0.3,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **changes}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # weights of one would hide a missing norm
                weight.uniform_(0.2, 2.0)
    model.save_pretrained(folder)
    return folder


def save_record(path: Path, kimi: TargetRecord, vocab_size: int = VOCAB) -> Path:
    """Write a target's record with another vocabulary size."""
    write_json(path, kimi.model_copy(update={"vocab_size": vocab_size, "name": "tiny"}))
    return path


def token_row(name: str, prompt: list[int], completion: list[int]) -> dict[str, Any]:
    """Return a row of accepted.parquet."""
    return {
        "id": name,
        "prompt_ids": prompt,
        "completion_ids": completion,
        "evidence": "ids",
        "count_delta": 0,
        "billed_tokens": len(completion),
        "finish_reason": "stop",
        "provider": "test",
        "segments": [],
        "notes": [],
        "status": "accept",
        "reason": None,
    }


def random_rows(shapes: list[tuple[str, int, int]], vocab_size: int = VOCAB, seed: int = 0) -> list[dict[str, Any]]:
    """Return rows of these sizes with random ids."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [
        torch.randint(vocab_size, (prompt + completion,), generator=generator).tolist()
        for _, prompt, completion in shapes
    ]
    return [token_row(name, ids[:prompt], ids[prompt:]) for (name, prompt, _), ids in zip(shapes, drawn, strict=True)]


def extract_settings(**changes: Any) -> ExtractSection:
    """Return the shipped settings with states stored as float32, small batches and the given changes."""
    shipped = YAML(typ="safe").load(DEFAULTS / "conf/extract/default.yaml")
    return ExtractSection(**{**shipped, "dtype": "float32", "tokens_per_batch": 64, "threads": 1, **changes})


def train_settings(**changes: Any) -> TrainSection:
    """Return the shipped settings, made small, with the given changes."""
    shipped = YAML(typ="safe").load(DEFAULTS / "conf/train/default.yaml")
    small = {
        "draft_vocab_size": 64,
        "epochs": 3,
        "tokens_per_batch": 64,
        "ttt_steps": 3,
        "heldout": 0.2,
        "save_every": 2,
        "threads": 1,
    }
    return TrainSection(**{**shipped, **small, **changes})


class Build:
    """A folder with a target and, on request, the stages' artifacts."""

    def __init__(self, folder: Path, kimi: TargetRecord, **target: Any) -> None:
        self.folder = folder
        self.model = save_target(folder / "model", **target)
        self.record = save_record(folder / "fingerprint.json", kimi, target.get("vocab_size", VOCAB))
        self.verdict = folder / "gate.json"
        write_json(self.verdict, {})
        self.stamps = folder / "extracted"

    def hidden(self, name: str = "data") -> Path:
        """Return the folder of a dataset's states."""
        return self.folder / name / "hidden"

    def extract(
        self, rows: list[dict[str, Any]], name: str = "data", engine: EngineSection | None = None, **settings: Any
    ) -> Path:
        """Run the extract stage; return the folder of states."""
        accepted = self.folder / name / "accepted.parquet"
        write_rows(accepted, SCHEMA, rows)
        config = extract.Config(extract=extract_settings(**settings), engine=engine)
        out = self.hidden(name)
        extract.run(
            config,
            accepted=accepted,
            verdict=self.verdict,
            record=self.record,
            model=self.model,
            hidden=out,
            stamp=self.stamps / f"{name}.json",
        )
        return out


def drafter_config(**changes: Any) -> DrafterConfig:
    """Return the config of a small drafter with grouped key heads."""
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "vocab_size": VOCAB,
        "draft_vocab_size": 50,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 512,
        "layer_ids": [2, 4, 5],
        "target_layers": LAYERS,
        "target_sha256": "t" * 64,
        "target_name": "tiny",
        "target_architectures": ["LlamaForCausalLM"],
        "trained_on": {"data": "d" * 64},
        "training": {"dtype": "float32"},
    }
    return DrafterConfig(**{**sizes, **changes})


def random_drafter(seed: int = 0, **changes: Any) -> Drafter:
    """Return a random drafter with its embedding and vocabulary."""
    config = drafter_config(**changes)
    generator = torch.Generator().manual_seed(seed)
    used = torch.randperm(config.vocab_size, generator=generator)[: config.draft_vocab_size].sort().values
    drafter = Drafter(config, torch.randn(config.vocab_size, config.hidden_size, generator=generator), used)
    initialize(drafter, torch.randn(config.draft_vocab_size, config.hidden_size, generator=generator), seed)
    return drafter


def random_pack(shapes: list[tuple[int, int]], seed: int = 0) -> Pack:
    """Return conversations of (prompt, completion) tokens with random states."""
    generator = torch.Generator().manual_seed(seed)
    lengths = tuple(prompt + completion for prompt, completion in shapes)
    total = sum(lengths)
    mask = torch.cat([torch.arange(prompt + completion) >= prompt for prompt, completion in shapes])
    return Pack(
        torch.randint(VOCAB, (total,), generator=generator),
        torch.randn(total, 3 * WIDTH, generator=generator),
        torch.randn(total, WIDTH, generator=generator),
        mask.float(),
        lengths,
    )


def part_of(pack: Pack, number: int) -> Pack:
    """Return one conversation of a pack as a pack of its own."""
    begin = sum(pack.lengths[:number])
    at = slice(begin, begin + pack.lengths[number])
    return Pack(pack.token_ids[at], pack.aux[at], pack.last[at], pack.weights[at], (pack.lengths[number],))
