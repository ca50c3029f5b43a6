"""Extraction against the bare forward pass over the same packed batches, on a random model of about 30 M parameters, rows of 20 to 1,000 tokens.

    python -m benchmarks.drafter_extract [--rows 60] [--threads 1]

Passes alternate, so that a busy machine slows both alike; the figures are processor seconds of the whole process, its writer included, and wall seconds.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pipeline.extract.forward import pack_attention, states
from pipeline.extract.plan import Row, batches, bytes_per_token, shards
from pipeline.extract.writer import ShardWriter
from pipeline.models import Source, Target

TOKENS_PER_BATCH = 2048


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Wall and processor seconds of ``work``."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


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
    pack_attention(target)
    lengths = torch.linspace(20, 1000, a.rows).long().tolist()
    rows = [Row(str(number), torch.randint(8000, (length,), dtype=torch.int32), 1, []) for number, length in enumerate(lengths)]
    planned = list(batches(rows, TOKENS_PER_BATCH, padded=False))
    padded = list(batches(rows, TOKENS_PER_BATCH, padded=True))
    computed = sum(max(len(rows[n].token_ids) for n in batch) * len(batch) for batch in padded)
    plans = shards(rows, planned, bytes_per_token(448, "bfloat16"), 1 << 24)

    def bare() -> None:
        for batch in planned:
            states(target, [2, 5, 7], [rows[n].token_ids for n in batch], packed=True)

    def stored() -> None:
        with tempfile.TemporaryDirectory() as folder, ShardWriter(Path(folder), rows, "bfloat16") as writer:
            for plan in plans:
                for batch in plan.batches:
                    aux, last = states(target, [2, 5, 7], [rows[n].token_ids for n in batch], packed=True)
                    writer.add(batch, aux, last, plan if batch is plan.batches[-1] else None)

    bare()
    pairs = [(timed(bare), timed(stored)) for _ in range(a.repeat)]
    tokens = sum(lengths)
    found = {
        "parameters": sum(p.numel() for p in target.model.parameters()),
        "tokens": tokens,
        "padding_packed": 0.0,
        "padding_padded": round(1 - tokens / computed, 4),
        "bare_cpu_s": round(min(b[1] for b, _ in pairs), 2),
        "stored_cpu_s": round(min(s[1] for _, s in pairs), 2),
        "share_by_cpu": round(min(b[1] for b, _ in pairs) / min(s[1] for _, s in pairs), 3),
        "share_by_wall": round(min(b[0] for b, _ in pairs) / min(s[0] for _, s in pairs), 3),
    }
    print(json.dumps({**vars(a), **found}))


if __name__ == "__main__":
    main()
