"""A training step's cost: causal block plus diagonals, loss in chunks, against dense [L, K L] masks in scaled_dot_product_attention.

    python -m benchmarks.drafter_step ours|dense-attention|dense [--length 1024 --steps 7 --hidden 256 --vocab 8000 --repeat 3]

`dense` is the step written plainly: one mask over all steps' keys, logits of every position kept for the backward pass.
`dense-attention` differs from ours in the attention alone. One variant a process, so that the peak of memory is its own.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn.functional import scaled_dot_product_attention

from pipeline.eagle3.config import DrafterConfig
from pipeline.eagle3.drafter import Drafter, initialize
from pipeline.eagle3.losses import Teacher, head_loss
from pipeline.eagle3.unroll import Pack, Plan, plan_unroll, unroll


def make(length: int, hidden: int, vocab: int) -> tuple[Drafter, Pack, torch.Tensor]:
    """Draw a drafter, one conversation of which all but the first token is supervised, and the teacher's head rows."""
    config = DrafterConfig(
        hidden_size=hidden, intermediate_size=2 * hidden, num_heads=hidden // 64, num_kv_heads=hidden // 64, head_dim=64, vocab_size=vocab, draft_vocab_size=vocab,
        rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, max_position_embeddings=length + 16, layer_ids=[2, 4, 5],
        target_layers=8, target_sha256="", target_name="", trained_on={}, training={},
    )  # fmt: skip
    torch.manual_seed(0)
    drafter = Drafter(config, torch.randn(vocab, hidden), torch.arange(vocab))
    head = torch.randn(vocab, hidden) / hidden**0.5
    initialize(drafter, head, 0)
    mask = torch.arange(length) > 0
    return drafter, Pack(torch.randint(vocab, (length,)), torch.randn(length, 3 * hidden), torch.randn(length, hidden), mask.float(), (length,)), head


def unroll_dense(drafter: Drafter, aux: torch.Tensor, plan: Plan) -> Iterator[torch.Tensor]:
    """Give the same steps with all keys of all steps and a dense mask."""
    layer, count = drafter.midlayer, len(plan.inputs)
    hidden = drafter.fuse(aux[plan.inputs])[None]
    causal, own = torch.ones(count, count, dtype=torch.bool).tril(), torch.eye(count, dtype=torch.bool)
    keys, values = [], []
    for step, ids in enumerate(plan.next_ids):
        mixed = layer.mix(drafter.embed(ids)[None], hidden)
        angles = drafter.angles(plan.positions[None] + step)
        key, value = layer.keys_values(mixed, angles)
        keys.append(key)
        values.append(value)
        mask = torch.cat([causal, *[own] * step], 1)
        attended = scaled_dot_product_attention(layer.queries(mixed, angles), torch.cat(keys, 2), torch.cat(values, 2), mask, scale=drafter.scale)
        hidden = layer.finish(hidden, attended)
        yield hidden[0]


Unroll = Callable[[Drafter, torch.Tensor, Plan], Iterator[torch.Tensor]]


def chunked(drafter: Drafter, pack: Pack, head: torch.Tensor, steps: int, run: Unroll, *, every_row: bool) -> torch.Tensor:
    """Loss as training computes it."""
    plan = plan_unroll(pack, steps, every_row=every_row)
    teacher = Teacher(pack.last[plan.teacher_rows], head)
    total = torch.zeros(())
    for supervised, hidden in zip(plan.supervised, run(drafter, pack.aux, plan), strict=True):
        total = total + head_loss(drafter.norm(hidden[supervised.queries]), drafter.lm_head.weight, teacher, supervised.teacher, supervised.weights, "kl").loss
    return total


def plain(drafter: Drafter, pack: Pack, head: torch.Tensor, steps: int) -> torch.Tensor:
    """Loss with the logits of every step and position held for the backward pass."""
    plan = plan_unroll(pack, steps, every_row=True)
    target = torch.softmax(pack.last @ head.T, -1)
    total = torch.zeros(())
    for supervised, hidden in zip(plan.supervised, unroll_dense(drafter, pack.aux, plan), strict=True):
        wanted = target[plan.teacher_rows[supervised.teacher]]
        drafted = torch.log_softmax(drafter.logits(hidden), -1)[supervised.queries]
        total = total + (wanted * (wanted.log() - drafted)).sum()
    return total


def main() -> None:
    """Time one variant and print a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=["ours", "dense-attention", "dense"])
    for name, default in {"length": 1024, "steps": 7, "hidden": 256, "vocab": 8000, "repeat": 3, "threads": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    drafter, pack, head = make(a.length, a.hidden, a.vocab)
    losses = {
        "ours": lambda: chunked(drafter, pack, head, a.steps, unroll, every_row=False),
        "dense-attention": lambda: chunked(drafter, pack, head, a.steps, unroll_dense, every_row=True),
        "dense": lambda: plain(drafter, pack, head, a.steps),
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, busy, value = [], [], 0.0
    for _ in range(a.repeat + 1):
        begin, cpu = time.perf_counter(), time.process_time()
        loss = losses[a.variant]()
        loss.backward()
        drafter.zero_grad()
        seconds.append(time.perf_counter() - begin)
        busy.append(time.process_time() - cpu)
        value = loss.item()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    best, cpu = min(seconds[1:]), min(busy[1:])
    found = {"loss": value, "seconds": round(best, 3), "cpu_seconds": round(cpu, 3), "tokens_per_s": round(a.length / best), "peak_mib": peak // 1024}
    print(json.dumps({**vars(a), **found}))
    if a.profile:
        with torch.profiler.profile() as recorded:
            losses[a.variant]().backward()
        print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))


if __name__ == "__main__":
    main()
