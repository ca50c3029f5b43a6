"""The drafter on a GPU: extraction against the bare forward pass, and training steps.

    python -m benchmarks.drafter_gpu            needs a GPU; figures go to benchmarks/results/, with the device's name
    python -m benchmarks.drafter_gpu --small    a few seconds on any machine, to see that it works; nothing is saved

The target is random, with 0.8 B parameters in bfloat16. Extraction: rows of 20 to 1,000 tokens, packed, stored in the
background; wall time of the best of three passes; the goal is at least 85 % of the bare pass. Training: the train
stage's own step with autocast, and seven steps of the unroll over packed rows of 1,024 tokens.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.drafter_extract import measure as measure_extraction
from benchmarks.results import save
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.drafter import Drafter, initialize
from pipeline.drafter.unroll import Pack
from pipeline.model.weights.ends import Ends
from pipeline.model.weights.layer_ids import default_layers
from pipeline.model.weights.source import WeightsSource
from pipeline.model.weights.target import Target
from pipeline.stages.extract.config import ExtractSection
from pipeline.stages.train.config import TrainSection
from pipeline.stages.train.learner import Learner


@dataclass(frozen=True)
class Size:
    """Sizes of the models, the data and the measurement."""

    extracted: str
    """Model of benchmarks/drafter_extract.py; the sizes below belong to the target that the drafter is trained for."""
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    draft_vocab: int
    rows: int
    tokens_per_batch: int
    row: int
    rows_per_pack: int
    steps: int


FULL = Size(
    "0.6b",
    1536,
    4096,
    16,
    12,
    4,
    128_000,
    32_000,
    rows=600,
    tokens_per_batch=16_384,
    row=1024,
    rows_per_pack=8,
    steps=12,
)
SMALL = Size("tiny", 64, 128, 8, 2, 1, 8000, 500, rows=6, tokens_per_batch=512, row=32, rows_per_pack=2, steps=3)


def make_target(size: Size, device: torch.device) -> Target:
    """Return a random Llama in bfloat16."""
    config = LlamaConfig(
        vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.inner, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, tie_word_embeddings=False,
        dtype=torch.bfloat16,
    )  # fmt: skip
    torch.manual_seed(0)
    with device:
        return Target(LlamaForCausalLM(config).to(torch.bfloat16), WeightsSource("random"))


def make_learner(size: Size, target: Target) -> Learner:
    """Return a learner with a random drafter for the target and the training settings of large targets."""
    settings = TrainSection(
        algorithm="eagle3", draft_vocab_size=size.draft_vocab, ttt_steps=7, step_decay=0.8, epochs=1,
        tokens_per_batch=size.row * size.rows_per_pack, lr=1e-4, warmup=0, clip=0.5, dtype="bfloat16",
        device=target.device.type, threads=None,
    )  # fmt: skip
    config = DrafterConfig(
        hidden_size=size.hidden, intermediate_size=size.inner, num_heads=size.heads, num_kv_heads=size.kv_heads,
        head_dim=size.hidden // size.heads, vocab_size=size.vocab, draft_vocab_size=size.draft_vocab, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, max_position_embeddings=4096,
        layer_ids=default_layers(size.layers), target_layers=size.layers, target_sha256="", target_name="random",
        trained_on={}, training={},
    )  # fmt: skip
    embedding, head = (
        weight.detach().float() for weight in (target.model.get_input_embeddings().weight, target.head.weight)
    )
    used = torch.arange(size.draft_vocab)
    drafter = Drafter(config, embedding.cpu(), used)
    initialize(drafter, head[: size.draft_vocab].cpu(), 0)
    ends = Ends(embedding, head, target.norm.float(), target.config, [], target.source)
    return Learner(drafter.to(target.device), ends, settings)


def train_steps(size: Size, learner: Learner) -> dict[str, float]:
    """Time whole training steps; return the median of all but the first two, which warm up."""
    tokens = size.row * size.rows_per_pack
    weights = (torch.arange(size.row) >= size.row // 4).float().repeat(size.rows_per_pack)
    states = torch.randn(tokens, 4 * size.hidden, dtype=torch.bfloat16)
    pack = Pack(
        torch.randint(size.vocab, (tokens,)),
        states[:, : 3 * size.hidden].contiguous(),
        states[:, 3 * size.hidden :].contiguous(),
        weights,
        (size.row,) * size.rows_per_pack,
    )
    on_gpu = learner.device.type == "cuda"
    seconds = []
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(size.steps):
        begin = time.perf_counter()
        loss = learner.step([pack], 1e-4).loss  # reading the loss waits for the GPU
        seconds.append(time.perf_counter() - begin)
    middle = sorted(seconds[2:])[len(seconds[2:]) // 2]
    peak = torch.cuda.max_memory_allocated() >> 20 if on_gpu else 0
    return {
        "tokens_per_step": tokens,
        "steps_of_unroll": 7,
        "seconds": round(middle, 4),
        "tokens_per_s": round(tokens / middle),
        "peak_mib": peak,
        "loss": round(loss, 4),
    }


def measure(size: Size, device: torch.device) -> dict[str, Any]:
    """Measure extraction and training."""
    settings = ExtractSection(
        backend="transformers", dtype="bfloat16", compute_dtype="bfloat16", device=device.type, threads=None,
        max_length=1000, tokens_per_batch=size.tokens_per_batch, shard_bytes=1 << 28,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        extraction = measure_extraction(Path(folder), settings, size.extracted, size.rows, 3)
    return {"extraction": extraction, "training": train_steps(size, make_learner(size, make_target(size, device)))}


def main(argv: list[str] | None = None) -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small sizes, on any device; nothing is saved")
    a = parser.parse_args(argv)
    if a.small:
        print(measure(SMALL, torch.device("cuda" if torch.cuda.is_available() else "cpu")))
        return 0
    if not torch.cuda.is_available():
        print(
            "drafter_gpu: torch finds no usable GPU; --small shows on any machine that this benchmark works",
            file=sys.stderr,
        )
        return 2
    save(
        "drafter_gpu",
        {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "dtype": "bfloat16",
            **measure(FULL, torch.device("cuda")),
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
