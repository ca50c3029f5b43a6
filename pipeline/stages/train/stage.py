"""The `train` stage: from hidden states to an EAGLE-3 drafter, by training-time test.

The checkpoint with the best held-out acceptance estimate is kept.
"""

import csv
import hashlib
import io
import math
from pathlib import Path
from typing import Any

import torch

from pipeline.core.determinism import deterministic
from pipeline.core.errors import ConfigError
from pipeline.core.files.atomic import write_text
from pipeline.core.files.json_file import read_model, to_json
from pipeline.core.reuse.cache import open_cache
from pipeline.core.reuse.code_digest import code_digest
from pipeline.core.sections import Section
from pipeline.drafter.checkpoint import save_drafter
from pipeline.drafter.config import DrafterConfig
from pipeline.drafter.drafter import Drafter, initialize
from pipeline.drafter.estimate import Estimate, JudgedPack, estimate
from pipeline.drafter.target_argmax import TargetArgmax
from pipeline.drafter.vocabulary import choose_vocabulary
from pipeline.formats.loss_mask import weights_of
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.devices import usable_device, use_threads
from pipeline.model.weights.ends import Ends, open_ends
from pipeline.stages.train.config import TrainSection
from pipeline.stages.train.data import Corpus, RowRef, check_shape, count_supervised, open_corpus, pack
from pipeline.stages.train.digest_check import DigestCheck, digested
from pipeline.stages.train.learner import Best, Learner, StepResult, learning_rate, load_packs, prefetched, schedule
from pipeline.stages.train.processes import ALONE, ProcessGroup, joined
from pipeline.stages.train.progress import ProgressPrinter
from pipeline.stages.train.resume import SavedRun
from pipeline.stages.train.shape import layer_shape
from pipeline.stages.train.sharding import whole, whole_weights


class Config(Section):
    """Slice of the config that this stage reads."""

    train: TrainSection
    names: list[str]
    """Datasets of the build."""


def run(
    config: Config, *, stamps: Path, hidden: dict[str, Path], record: Path, model: Path, checkpoint: Path, log: Path
) -> None:
    """Train a drafter and write its best checkpoint and the log.

    Raises:
        ArtifactError: hidden states are not of this target or these datasets, or changed since their extraction.
        InputError: there is nothing to train on.
        ConfigError: training diverged.

    """
    settings = config.train
    use_threads(settings.threads)
    ends = open_ends(model)
    target = read_model(record, TargetRecord)
    corpus = open_corpus(
        stamps,
        hidden,
        config.names,
        ends.source.sha256,
        settings.heldout,
        weights_of(settings.loss_mask),
        target.role_id("think_open"),
    )
    check_shape(corpus.manifest, ends, str(model))
    with (
        deterministic(warn_only=settings.device != "cpu"),
        joined(settings.device) as group,
        digested(corpus, stamps, group) as digests,
    ):
        learner = _learner(settings, ends, corpus, target.name, group)
        progress = SavedRun(checkpoint, _key(settings, corpus))
        _print(
            group,
            f"{len(corpus.training)} rows, {len(corpus.heldout)} held out; the draft vocabulary covers "
            f"{_coverage(learner.drafter, corpus):.2%} of supervised tokens",
        )
        if progress.restore(learner):
            _print(group, f"continues after step {progress.step}")
        # wait for all, or the first process to finish could remove a saved run that another has not read
        group.agree(progress.step, learner.device)
        _train(learner, corpus, progress, log, digests)
        digests.settle(progress.step, learner.device)
        if group.leads:
            _write_log(learner, progress, log)
            save_drafter(checkpoint, learner.drafter.config, progress.best.tensors)
            progress.clear()


def _learner(settings: TrainSection, ends: Ends, corpus: Corpus, target: str, group: ProcessGroup = ALONE) -> Learner:
    """Return a learner with an untrained drafter, on the device of the settings."""
    used = choose_vocabulary(count_supervised(corpus), settings.draft_vocab_size)
    drafter = Drafter(drafter_config(settings, ends, corpus, target), ends.embedding, used)
    initialize(drafter, ends.head[used], settings.seed)
    device = usable_device(settings.device)
    return Learner(drafter.to(device), ends.to(device), settings, group)


def _coverage(drafter: Drafter, corpus: Corpus) -> float:
    counts = count_supervised(corpus)
    return float(counts[drafter.used.cpu()].sum() / counts.sum())


def _print(group: ProcessGroup, what: str) -> None:
    if group.leads:
        print(f"train: {what}", flush=True)


def _train(learner: Learner, corpus: Corpus, progress: SavedRun, log: Path, digests: DigestCheck) -> None:
    """Train through the rest of the schedule, from the step of ``progress`` on."""
    settings, group = learner.settings, learner.group
    epochs = schedule(corpus, settings)
    steps = sum(map(len, epochs))
    judged = judge_heldout(corpus, learner.ends, settings, group)
    begin, speaker = 0, ProgressPrinter(steps)
    for number, epoch in enumerate(epochs, 1):
        todo = epoch[max(0, progress.step - begin) :]
        begin += len(epoch)
        loaded = prefetched(
            todo,
            lambda packs: load_packs(corpus, packs[group.rank :: group.count], pinned=learner.device.type == "cuda"),
        )
        for refs, packs in zip(todo, loaded, strict=True):
            rate = learning_rate(progress.step, steps, settings.lr, settings.warmup)
            result = learner.step(packs, rate)
            if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
                raise _diverged(corpus, refs, result, f"step {progress.step + 1} of {steps}")
            progress.step += 1
            progress.rows.append(_row(progress.step, number, rate, result))
            if group.leads:
                speaker.step(progress.step, result)
            digests.check()
            if progress.step % settings.save_every == 0 and progress.step < begin:
                digests.settle(progress.step, learner.device)
                progress.save(learner)
                _write_log(learner, progress, log)
        if todo:
            digests.settle(progress.step, learner.device)
            _end_epoch(
                learner, judged, progress, f"epoch {number} of {settings.epochs}, step {progress.step} of {steps}"
            )
            _write_log(learner, progress, log)


def _diverged(corpus: Corpus, packs: list[list[RowRef]], result: StepResult, where: str) -> ConfigError:
    """Return an error for a step without a finite loss or gradient.

    Raises:
        ArtifactError: a row of the step is damaged, so that training is not at fault.

    """
    for refs in packs:
        corpus.read(refs, check=True)
    fault = f"loss is {result.loss}" if not math.isfinite(result.loss) else f"gradient's norm is {result.grad_norm}"
    return ConfigError(f"train: the {fault} at {where}: training diverged; lower train.lr, or train.clip")


def _write_log(learner: Learner, progress: SavedRun, log: Path) -> None:
    """Write the log, so that it can be plotted while training runs."""
    if learner.group.leads:
        write_text(log, _csv(progress.rows, learner.settings.ttt_steps))


def _end_epoch(learner: Learner, judged: list[JudgedPack], progress: SavedRun, where: str) -> None:
    """Measure on the held-out rows, keep the weights if they are the best so far, and save."""
    row = progress.rows[-1]
    measured = _measure(learner, judged)
    row["heldout_acceptance"] = measured
    if measured is None or measured > progress.best.estimate:
        weights = {name: whole(tensor) for name, tensor in learner.drafter.state_dict().items()}
        progress.best = Best(-1.0 if measured is None else measured, progress.step, weights)
    progress.save(learner)
    shown = "" if measured is None else f", held-out acceptance {measured:.3f}"
    _print(learner.group, f"{where}: loss {row['loss']:.4f}, accuracy {row['accuracy_0']:.3f}{shown}")


def _measure(learner: Learner, judged: list[JudgedPack]) -> float | None:
    """Return the held-out acceptance length, from counts summed over all processes; None if no row is held out."""
    with whole_weights(learner.objective):
        mine = estimate(learner.drafter, judged, learner.settings.ttt_steps)
    starts, accepted = learner.group.total(torch.tensor([mine.starts, mine.accepted], device=learner.device)).tolist()
    return Estimate(tuple(starts), tuple(accepted)).length if any(starts) else None


def judge_heldout(corpus: Corpus, ends: Ends, settings: TrainSection, group: ProcessGroup = ALONE) -> list[JudgedPack]:
    """Return the held-out packs of this process, with the target's choices over its whole vocabulary.

    Raises:
        ArtifactError: a held-out row is damaged; no loss would show it.

    """
    judged = []
    argmax = TargetArgmax(ends.head)
    for refs in pack(corpus.heldout, settings.tokens_per_batch)[group.rank :: group.count]:
        laid = corpus.packed(refs, check=True)
        choices = torch.zeros(len(laid.token_ids), dtype=torch.int64)
        hidden = ends.teacher_hidden(laid.last[laid.loss_mask].to(ends.head.device, ends.head.dtype))
        choices[laid.loss_mask] = argmax.of(hidden).cpu()
        judged.append(JudgedPack(laid, choices))
    return judged


def drafter_config(settings: TrainSection, ends: Ends, corpus: Corpus, target: str) -> DrafterConfig:
    """Return the drafter's config: the target's sizes, except for the settings."""
    text = ends.config
    layer = layer_shape(settings, text)
    return DrafterConfig(
        hidden_size=int(text.hidden_size),
        intermediate_size=layer.intermediate_size,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim=layer.head_dim,
        vocab_size=corpus.manifest.vocab_size,
        draft_vocab_size=settings.draft_vocab_size,
        rms_norm_eps=layer.rms_norm_eps,
        rope_parameters=layer.rope_parameters,
        max_position_embeddings=int(text.max_position_embeddings),
        layer_ids=corpus.manifest.layer_ids,
        target_layers=corpus.manifest.num_layers,
        target_sha256=corpus.manifest.target_sha256,
        target_name=target,
        target_architectures=ends.architectures,
        trained_on={name: stamp.sha256 for name, stamp in corpus.stamps.items()},
        training=settings.model_dump(mode="json"),
    )


def _key(settings: TrainSection, corpus: Corpus) -> str:
    """Return a digest of everything that decides the weights, including this program's code."""
    with open_cache("train") as notes:
        code = code_digest("train", notes).hex()
    facts = [
        settings.model_dump(mode="json"),
        {n: s.sha256 for n, s in corpus.stamps.items()},
        corpus.manifest.target_sha256,
        code,
    ]
    return hashlib.sha256(to_json(facts)).hexdigest()


def _row(step: int, epoch: int, rate: float, result: StepResult) -> dict[str, Any]:
    accuracy = {f"accuracy_{number}": value for number, value in enumerate(result.accuracy)}
    return {
        "step": step,
        "epoch": epoch,
        "loss": result.loss,
        "lr": rate,
        "grad_norm": result.grad_norm,
        **accuracy,
        "heldout_acceptance": None,
    }


def _csv(rows: list[dict[str, Any]], steps: int) -> str:
    """Return the log as CSV: six digits, empty if nothing was measured."""
    columns = [
        "step",
        "epoch",
        "loss",
        "lr",
        "grad_norm",
        *(f"accuracy_{number}" for number in range(steps)),
        "heldout_acceptance",
    ]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()} for row in rows
    )
    return out.getvalue()
