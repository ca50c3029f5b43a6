"""Extraction against the bare forward pass over the same packed batches.

    python -m benchmarks.drafter_extract [--rows 60] [--threads 1] [--repeat 2]
    python -m benchmarks.drafter_extract --model 0.6b --device cuda --dtype bfloat16 --rows 2000 \
        --tokens-per-batch 16384

The model is random, and the rows have 20 to 1,000 tokens in random order. Three things are timed in turns, so that
other load slows all alike: `bare` is the decoder's forward pass alone; `pass` is the stage's work between loading the
model and writing the index (forward pass, states captured, stored in the background, hashed); `stage` is the stage's
whole `run`, with loading the weights and writing index and stamp. Figures are CPU seconds of the whole process and wall
seconds; a share is bare divided by the other.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.core.files.json_file import write_json
from pipeline.core.files.tables import read_batches
from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.weights.devices import DTYPES
from pipeline.model.weights.target import open_model
from pipeline.stages.extract import stage
from pipeline.stages.extract.config import ExtractSection
from pipeline.stages.extract.forward import pack_attention, run_packed
from pipeline.stages.extract.local import LocalBackend
from pipeline.stages.extract.plan import InputRow, batches, bytes_per_token, select, shards
from pipeline.stages.extract.writer import ShardWriter
from tests.parquet import write_rows

VOCAB = 8000
MODELS = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "30m": {
        "hidden_size": 448,
        "intermediate_size": 1216,
        "num_hidden_layers": 10,
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
    },
    "0.6b": {
        "hidden_size": 1536,
        "intermediate_size": 4608,
        "num_hidden_layers": 20,
        "num_attention_heads": 12,
        "num_key_value_heads": 4,
    },
}
ACCEPTED: dict[str, Any] = {
    "evidence": "ids", "count_delta": 0, "billed_tokens": 1, "finish_reason": "stop", "provider": "bench",
    "segments": [], "notes": [], "status": "accept", "reason": None,
}  # fmt: skip


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return the wall seconds and the CPU seconds of ``work``."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def accepted_rows(count: int) -> list[dict[str, Any]]:
    """Return rows of accepted.parquet with lengths spread evenly over 20 to 1,000 tokens, in random order."""
    lengths = torch.linspace(20, 1000, count).long()[torch.randperm(count)].tolist()
    ids = [torch.randint(VOCAB, (length,)).tolist() for length in lengths]
    return [
        {"id": str(number), "prompt_ids": one[:10], "completion_ids": one[10:], **ACCEPTED}
        for number, one in enumerate(ids)
    ]


def padding(rows: list[InputRow], tokens: int) -> float:
    """Share of the tokens computed that is padding, where batches have to be padded."""
    computed = sum(
        max(len(rows[n].token_ids) for n in batch) * len(batch) for batch in batches(rows, tokens, padded=True)
    )
    return 1 - sum(len(row.token_ids) for row in rows) / computed


def main() -> None:
    """Measure and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 60, "threads": 1, "repeat": 2, "tokens-per-batch": 2048}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--model", choices=list(MODELS), default="30m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--dtype",
        choices=list(DTYPES),
        default="float32",
        help="number type of the forward pass; states are stored as bfloat16",
    )
    parser.add_argument(
        "--folder", type=Path, help="where states are written; default: the system's folder for temporary files"
    )
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    settings = ExtractSection(
        backend="transformers", dtype="bfloat16", compute_dtype=a.dtype, device=a.device, threads=a.threads,
        max_length=1000, tokens_per_batch=a.tokens_per_batch, shard_bytes=1 << 26,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=a.folder) as name:
        print(
            json.dumps(
                {
                    **{k: v for k, v in vars(a).items() if k != "folder"},
                    **measure(Path(name), settings, a.model, a.rows, a.repeat),
                }
            )
        )


def measure(folder: Path, settings: ExtractSection, model: str, count: int, repeat: int) -> dict[str, Any]:
    """Time all three in ``folder``; return the best of ``repeat`` rounds."""
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, **MODELS[model])).save_pretrained(folder / "model")
    write_rows(folder / "accepted.parquet", SCHEMA, accepted_rows(count))
    write_json(folder / "gate.json", {})
    write_json(folder / "record.json", {"vocab_size": VOCAB})
    rows = select(folder, read_batches(folder / "accepted.parquet", SCHEMA), settings, VOCAB).rows
    target = open_model(folder / "model", dtype=settings.compute_dtype, device=settings.device)
    pack_attention(target)
    backend = LocalBackend(settings, folder / "model", [2, target.num_layers // 2, target.num_layers - 3])
    backend.start(rows[0])
    planned = list(batches(rows, settings.tokens_per_batch, padded=False))
    plans = shards(rows, planned, bytes_per_token(target.hidden_size, settings.dtype), settings.shard_bytes)

    def bare() -> None:
        with torch.inference_mode():
            for batch in planned:
                run_packed(target, [rows[number].token_ids for number in batch])

    def stored() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as out, ShardWriter(Path(out), rows, settings.dtype) as writer:
            taken = backend.states([rows[number] for number in batch] for plan in plans for batch in plan.batches)
            for plan in plans:
                for batch in plan.batches:
                    writer.add(batch, *next(taken), plan if batch is plan.batches[-1] else None)

    def whole() -> None:
        paths = {
            "accepted": "accepted.parquet",
            "verdict": "gate.json",
            "record": "record.json",
            "model": "model",
            "hidden": "hidden",
            "stamp": "stamp.json",
        }
        stage.run(stage.Config(extract=settings), **{key: folder / path for key, path in paths.items()})

    bare()
    times = [(timed(bare), timed(stored), timed(whole)) for _ in range(repeat)]
    assert len(HiddenStates(folder / "hidden")) == count
    tokens = sum(len(row.token_ids) for row in rows)
    (bare_wall, bare_cpu), (pass_wall, pass_cpu), (stage_wall, stage_cpu) = (
        tuple(min(one[part][figure] for one in times) for figure in (0, 1)) for part in range(3)
    )
    return {
        "machine": torch.cuda.get_device_name()
        if settings.device.startswith("cuda")
        else f"{platform.machine()}, {os.cpu_count()} CPUs",
        "parameters": sum(p.numel() for p in target.model.parameters()),
        "tokens": tokens,
        "padding_packed": round(1 - tokens / sum(len(rows[n].token_ids) for batch in planned for n in batch), 4),
        "padding_padded": round(padding(rows, settings.tokens_per_batch), 4),
        "bare_cpu_s": round(bare_cpu, 2),
        "pass_cpu_s": round(pass_cpu, 2),
        "stage_cpu_s": round(stage_cpu, 2),
        "bare_tokens_per_s": round(tokens / bare_wall),
        "pass_tokens_per_s": round(tokens / pass_wall),
        "pass_share_by_cpu": round(bare_cpu / pass_cpu, 3),
        "pass_share_by_wall": round(bare_wall / pass_wall, 3),
        "stage_share_by_cpu": round(bare_cpu / stage_cpu, 3),
        "stage_share_by_wall": round(bare_wall / stage_wall, 3),
    }


if __name__ == "__main__":
    main()
