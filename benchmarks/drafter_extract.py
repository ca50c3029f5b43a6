"""Extraction against the bare forward pass over the same packed batches, on a random model of about 30 M parameters, rows of 20 to 1,000 tokens.

    python -m benchmarks.drafter_extract [--rows 60] [--threads 1]

The bare pass is the decoder's forward with nothing taken from it. Passes alternate, so that a busy machine slows both alike; the figures are processor seconds of the whole process, its writer included, and wall seconds.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.extract.forward import pack_attention, run_packed, states
from pipeline.extract.plan import Row, batches, bytes_per_token, shards
from pipeline.extract.writer import ShardWriter
from pipeline.models import Source, Target

TOKENS_PER_BATCH = 2048


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds of ``work``, what it gave a GPU to do included."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - wall, time.process_time() - cpu


def random_rows(lengths: list[int]) -> list[Row]:
    """Draw rows of these lengths."""
    return [Row(str(number), torch.randint(8000, (length,), dtype=torch.int32), 1, []) for number, length in enumerate(lengths)]


def compare(target: Target, layer_ids: list[int], rows: list[Row], tokens_per_batch: int, repeat: int) -> dict[str, float]:
    """Extraction to bfloat16 shards against the bare forward pass over the same packed batches."""
    pack_attention(target)
    lengths = [len(row.token_ids) for row in rows]
    planned = list(batches(rows, tokens_per_batch, padded=False))
    padded = list(batches(rows, tokens_per_batch, padded=True))
    computed = sum(max(len(rows[n].token_ids) for n in batch) * len(batch) for batch in padded)
    plans = shards(rows, planned, bytes_per_token(target.hidden_size, "bfloat16"), 1 << 24)

    def bare() -> None:
        with torch.inference_mode():
            for batch in planned:
                run_packed(target, [rows[n].token_ids for n in batch])

    def stored() -> None:
        with tempfile.TemporaryDirectory() as folder, ShardWriter(Path(folder), rows, "bfloat16") as writer:
            for plan in plans:
                for batch in plan.batches:
                    aux, last = states(target, layer_ids, [rows[n].token_ids for n in batch], packed=True)
                    writer.add(batch, aux, last, plan if batch is plan.batches[-1] else None)

    bare()
    pairs = [(timed(bare), timed(stored)) for _ in range(repeat)]
    tokens = sum(lengths)
    best = {(who, what): min(pair[who][what] for pair in pairs) for who in (0, 1) for what in (0, 1)}
    return {
        "parameters": sum(p.numel() for p in target.model.parameters()),
        "tokens": tokens,
        "padding_packed": 0.0,
        "padding_padded": round(1 - tokens / computed, 4),
        "bare_tokens_per_s": round(tokens / best[0, 0]),
        "stored_tokens_per_s": round(tokens / best[1, 0]),
        "share_by_wall": round(best[0, 0] / best[1, 0], 3),
        "bare_cpu_s": round(best[0, 1], 2),
        "stored_cpu_s": round(best[1, 1], 2),
        "share_by_cpu": round(best[0, 1] / best[1, 1], 3),
    }


def main() -> None:
    """Measure and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 60, "threads": 1, "repeat": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=8000, hidden_size=448, intermediate_size=1216, num_hidden_layers=10, num_attention_heads=7, num_key_value_heads=7)
    target = Target(LlamaForCausalLM(config), Source("random"))
    rows = random_rows(torch.linspace(20, 1000, a.rows).long().tolist())
    print(json.dumps({**vars(a), **compare(target, [2, 5, 7], rows, TOKENS_PER_BATCH, a.repeat)}))


if __name__ == "__main__":
    main()
