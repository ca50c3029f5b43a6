"""Cost of a training step against a plain version with dense [L, K L] masks in scaled_dot_product_attention.

    python -m benchmarks.drafter_step [--length 1024 --steps 7 --hidden 256 --vocab 8000 --prompt 1 --repeat 3 ...]
    python -m benchmarks.drafter_step --one ours|dense|growing|growing-attention [--profile]

A step is forward, backward, clipping and AdamW over one conversation; all but its first ``prompt`` tokens are
supervised. `ours` is the step of the train stage. `dense` is the plain version: every unrolled step has a mask [L, K L]
over the keys of all K steps, one shape as compilers want it, and autograd keeps the logits of every step and position;
it takes slices and makes no padded copies. `growing` is harder to beat: its masks are [L, (j+1) L] at step j.
`growing-attention` differs from ours only in the unroll. Each variant runs in its own process, so that the memory peak
is its own. Speed is also given in CPU seconds, since wall time on a busy machine says little.
"""

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from benchmarks.results import in_a_process, save
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.drafter import Drafter, initialize
from pipeline.drafter.objective import loss_of_steps
from pipeline.drafter.unroll import Pack, UnrollPlan, plan_unroll
from pipeline.model.weights.ends import Ends
from pipeline.model.weights.source import WeightsSource
from pipeline.stages.train.config import TrainSection
from pipeline.stages.train.learner import Learner

VARIANTS = ["ours", "dense", "growing", "growing-attention"]
DECAY = 0.8


def make(length: int, prompt: int, hidden: int, vocab: int, steps: int) -> tuple[Learner, Pack]:
    """Return a random drafter with its teacher and optimizer, and one random conversation."""
    config = DrafterConfig(
        hidden_size=hidden, intermediate_size=2 * hidden, num_heads=hidden // 64, num_kv_heads=hidden // 64,
        head_dim=64, vocab_size=vocab, draft_vocab_size=vocab, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, max_position_embeddings=length + 16,
        layer_ids=[2, 4, 5], target_layers=8, target_sha256="", target_name="", trained_on={}, training={},
    )  # fmt: skip
    torch.manual_seed(0)
    drafter = Drafter(config, torch.randn(vocab, hidden), torch.arange(vocab))
    ends = Ends(
        drafter.embedding,
        torch.randn(vocab, hidden) / hidden**0.5,
        LlamaRMSNorm(hidden),
        None,
        [],
        WeightsSource("random"),
    )
    initialize(drafter, ends.head, 0)
    settings = TrainSection(
        algorithm="eagle3",
        draft_vocab_size=vocab,
        ttt_steps=steps,
        step_decay=DECAY,
        epochs=1,
        tokens_per_batch=length,
        lr=1e-4,
        warmup=0,
        clip=0.5,
    )
    weights = (torch.arange(length) >= prompt).float()
    return Learner(drafter, ends, settings), Pack(
        torch.randint(vocab, (length,)),
        torch.randn(length, 3 * hidden),
        torch.randn(length, hidden),
        weights,
        (length,),
    )


def unroll_dense(drafter: Drafter, aux: torch.Tensor, plan: UnrollPlan, *, growing: bool) -> Iterator[torch.Tensor]:
    """Give the same steps with a dense mask over the keys of all steps, or of those so far."""
    layer, count, steps = drafter.midlayer, len(plan.inputs), len(plan.embedded)
    hidden = drafter.fuse(aux[plan.inputs])[None]
    later = 0 if growing else count
    causal, own = torch.ones(count, count, dtype=torch.bool).tril(), torch.eye(count, dtype=torch.bool)
    keys, values = [], []
    for step, rows in enumerate(plan.embedded):
        mixed = layer.mix(drafter.embed(plan.next_ids[rows])[None], hidden)
        angles = drafter.angles(plan.positions[None] + step)
        key, value = layer.keys_values(mixed, angles)
        keys.append(key)
        values.append(value)
        left = (steps - 1 - step) * later
        mask = torch.cat([causal, *[own] * step, own.new_zeros(count, left)], 1)
        still = key.new_zeros(*key.shape[:2], left, key.shape[3])
        attended = scaled_dot_product_attention(
            layer.queries(mixed, angles),
            torch.cat([*keys, still], 2),
            torch.cat([*values, still], 2),
            mask,
            scale=drafter.scale,
        )
        hidden = layer.finish(hidden, attended)
        yield hidden[0]


def growing_attention(learner: Learner, pack: Pack) -> torch.Tensor:
    """Return the loss with growing masks and our head."""
    drafter, plan = learner.drafter, plan_unroll(pack, learner.settings.ttt_steps, every_row=True)
    unrolled = unroll_dense(drafter, pack.aux, plan, growing=True)
    weights = torch.tensor([DECAY**step / len(s.queries) for step, s in enumerate(plan.supervised)])
    return loss_of_steps(drafter, unrolled, plan, learner.teacher(pack, plan), weights, "kl").loss


def dense(learner: Learner, pack: Pack, *, growing: bool = False) -> torch.Tensor:
    """Return the plain loss: masked soft cross-entropy over all positions, minus the teacher's entropy."""
    drafter, plan = learner.drafter, plan_unroll(pack, learner.settings.ttt_steps, every_row=True)
    with torch.no_grad():
        logs = torch.log_softmax(learner.ends.teacher_hidden(pack.last) @ learner.head_rows.T, -1)
        target = logs.exp()
        minus_entropy = (target * logs).sum(-1)
        del logs
    total = torch.zeros(())
    for step, hidden in enumerate(unroll_dense(drafter, pack.aux, plan, growing=growing)):
        taught = slice(1 + step, None)  # the teacher and the mask are shifted
        drafted = torch.log_softmax(drafter.logits(hidden[: len(target) - 1 - step]), -1)
        losses = minus_entropy[taught] - (target[taught] * drafted).sum(-1)
        total = total + DECAY**step * (losses * pack.weights[taught]).sum() / pack.weights[taught].sum()
    return total


def stepper(learner: Learner, pack: Pack, variant: str) -> Callable[[], float]:
    """Return a function that runs one whole training step of a variant and returns the loss."""
    if variant == "ours":
        return lambda: learner.step([pack], 1e-4).loss
    plain: dict[str, Callable[[Learner, Pack], torch.Tensor]] = {
        "dense": dense,
        "growing": partial(dense, growing=True),
        "growing-attention": growing_attention,
    }

    def step() -> float:
        learner.optimizer.zero_grad(set_to_none=True)
        loss = plain[variant](learner, pack)
        loss.backward()
        nn.utils.clip_grad_norm_(learner.drafter.parameters(), learner.settings.clip, foreach=False)
        learner.optimizer.step()
        return loss.item()

    return step


def measure(a: argparse.Namespace) -> dict[str, Any]:
    """Time one variant; the first step warms up, and the best of the others counts."""
    torch.set_num_threads(a.threads)
    learner, pack = make(a.length, a.prompt, a.hidden, a.vocab, a.steps)
    step = stepper(learner, pack, a.one)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, busy, losses = [], [], []
    for _ in range(a.repeat + 1):
        begin, cpu = time.perf_counter(), time.process_time()
        losses.append(step())
        wall.append(time.perf_counter() - begin)
        busy.append(time.process_time() - cpu)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    best = min(wall[1:])
    figures = {
        "loss": losses[0],
        "seconds": round(best, 3),
        "cpu_seconds": round(min(busy[1:]), 3),
        "tokens_per_s": round(a.length / best),
        "peak_mib": peak // 1024,
    }
    if a.profile:
        with torch.profiler.profile() as recorded:
            step()
        events = sorted(recorded.key_averages(), key=lambda event: -event.self_cpu_time_total)
        whole = sum(event.self_cpu_time_total for event in events)
        figures["profile"] = {event.key: round(event.self_cpu_time_total / whole, 3) for event in events[:12]}
    return figures


def products(length: int, steps: int, hidden: int, vocab: int) -> dict[str, dict[str, float]]:
    """Return the billions of operations in a step's matrix products, forward and backward, all tokens supervised."""
    rows = length - 1
    pairs = {
        "ours": steps * rows * rows / 2 + rows * steps * (steps - 1) / 2,
        "dense": rows * rows * steps * steps,
        "growing": rows * rows * steps * (steps + 1) / 2,
    }
    operations = {}
    for variant in pairs:
        width = hidden if variant == "ours" else 2 * hidden  # ours multiplies the embedding's half once for all steps
        weights = width * 3 * hidden + hidden * hidden + 3 * hidden * 2 * hidden
        parts = {
            "head": 6 * steps * rows * vocab * hidden,
            "layer": 6 * steps * rows * weights,
            "attention": 14 * pairs[variant] * hidden,
        }
        operations[variant] = {name: round(count / 1e9, 1) for name, count in parts.items()}
    return operations


def main() -> None:
    """Measure every variant, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=VARIANTS, help="measure one variant here and print a line of JSON")
    sizes = {"length": 1024, "steps": 7, "hidden": 256, "vocab": 8000, "prompt": 1, "repeat": 3, "threads": 1}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--profile", action="store_true", help="also report the time of each torch operation")
    a = parser.parse_args()
    if a.one:
        print(json.dumps(measure(a)))
        return
    gflop = products(a.length, a.steps, a.hidden, a.vocab)
    described = {
        "torch": torch.__version__,
        "dtype": "float32",
        **{name: getattr(a, name) for name in sizes},
        "gflop": gflop,
    }
    save("drafter_step", {**described, "cases": cases(a, list(sizes))})


def cases(a: argparse.Namespace, sizes: list[str]) -> dict[str, Any]:
    """Measure every variant with the prompt that was asked for, and with a prompt of a quarter of the row.

    All tokens but the prompt's are supervised.
    """
    figures = {}
    for prompt in sorted({a.prompt, a.length // 4}):
        arguments = [
            text for name in sizes for text in (f"--{name}", str(prompt if name == "prompt" else getattr(a, name)))
        ]
        of = {
            variant: in_a_process("benchmarks.drafter_step", variant, "--profile", *arguments) for variant in VARIANTS
        }
        figures[f"prompt of {prompt}"] = {
            f"ours_to_{name}": compared(of["ours"], of[name]) for name in ("dense", "growing")
        } | of
    return figures


def compared(ours: dict[str, Any], plain: dict[str, Any]) -> dict[str, float]:
    """Return how many times faster ours is, and its share of the other's memory."""
    return {
        "tokens_per_s": round(plain["seconds"] / ours["seconds"], 2),
        "cpu_seconds": round(plain["cpu_seconds"] / ours["cpu_seconds"], 2),
        "peak_memory": round(ours["peak_mib"] / plain["peak_mib"], 2),
    }


if __name__ == "__main__":
    main()
