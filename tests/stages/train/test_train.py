"""Training gives the same bits every time, also after a kill and over several processes.

It refuses what does not belong together.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import AerieError, ArtifactError, ConfigError, InputError
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, write_json
from pipeline.core.files.tensors import TensorFile, load_tensors, save_tensors
from pipeline.drafter.checkpoint import load_drafter
from pipeline.drafter.estimate import estimate
from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.loss_mask import weights_of
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.weights.ends import open_ends
from pipeline.stages.train import stage
from pipeline.stages.train.data import RowRef, check_shape, open_corpus, pack, packs_of_epoch
from pipeline.stages.train.learner import Learner, learning_rate, load_packs, schedule
from pipeline.stages.train.processes import ProcessGroup
from pipeline.stages.train.resume import SavedRun
from tests.conftest import ROOT
from tests.polling import TIMEOUT_S
from tests.tiny import Build, random_rows, save_target, train_settings

pytestmark = pytest.mark.slow

SHAPES = [(f"row-{number}", 3 + number % 7, 6 + number % 11) for number in range(24)]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory, kimi: TargetRecord) -> Build:
    build = Build(tmp_path_factory.mktemp("build"), kimi)
    build.extract(random_rows(SHAPES[:12]), "a")
    build.extract(random_rows(SHAPES[12:], seed=1), "b", dtype="bfloat16")
    return build


def train(
    build: Build,
    out: Path,
    names: tuple[str, ...] = ("a", "b"),
    hidden: dict[str, Path] | None = None,
    stamps: Path | None = None,
    **changes: Any,
) -> Path:
    config = stage.Config(train=train_settings(**changes), names=list(names))
    hidden = {name: build.hidden(name) for name in names} | (hidden or {})
    stage.run(
        config,
        stamps=stamps or build.stamps,
        hidden=hidden,
        record=build.record,
        model=build.model,
        checkpoint=out / "checkpoint",
        log=out / "log.csv",
    )
    return out


def learner_of(build: Build, **changes: Any) -> tuple[Learner, Any]:
    config = train_settings(**changes)
    ends = open_ends(build.model)
    corpus = open_corpus(
        build.stamps,
        {name: build.hidden(name) for name in "ab"},
        ["a", "b"],
        ends.source.sha256,
        config.heldout,
        weights_of(config.loss_mask),
    )
    return stage._learner(config, ends, corpus, "tiny"), corpus


def test_two_runs_give_the_same_bytes(build: Build, tmp_path: Path) -> None:
    first, second = train(build, tmp_path / "1"), train(build, tmp_path / "2")
    assert sha256_folder(first / "checkpoint") == sha256_folder(second / "checkpoint")
    assert (first / "log.csv").read_bytes() == (second / "log.csv").read_bytes()
    assert not (first / ".checkpoint.partial").exists()
    other = train(build, tmp_path / "3", seed=1)
    assert sha256_folder(other / "checkpoint") != sha256_folder(first / "checkpoint")


def test_the_log_has_a_line_a_step_and_the_checkpoint_is_the_best_by_held_out_estimate(
    build: Build, tmp_path: Path
) -> None:
    out = train(build, tmp_path, lr=0.01, epochs=4)
    header, *lines = [line.split(",") for line in (out / "log.csv").read_text().splitlines()]
    assert header == [
        "step",
        "epoch",
        "loss",
        "lr",
        "grad_norm",
        "accuracy_0",
        "accuracy_1",
        "accuracy_2",
        "heldout_acceptance",
    ]
    assert [int(line[0]) for line in lines] == list(range(1, len(lines) + 1))
    measured = [float(line[-1]) for line in lines if line[-1]]
    assert len(measured) == 4
    assert all(1 <= value <= 4 for value in measured)
    drafter = load_drafter(out / "checkpoint", open_ends(build.model).embedding, open_ends(build.model).source.sha256)
    learner, corpus = learner_of(build, lr=0.01, epochs=4)
    found = estimate(drafter, stage.judge_heldout(corpus, learner.ends, learner.settings), 3).length
    assert found == pytest.approx(max(measured), abs=1e-5)


def test_a_drafter_learns_its_rows(build: Build, tmp_path: Path) -> None:
    out = train(build, tmp_path, lr=0.01, epochs=10, heldout=0)
    rows = [line.split(",") for line in (out / "log.csv").read_text().splitlines()[1:]]
    first, last = ([row for row in rows if row[1] == epoch] for epoch in ("1", "10"))
    assert sum(float(row[2]) for row in last) < 0.5 * sum(float(row[2]) for row in first)
    assert sum(float(row[5]) for row in last) / len(last) > 0.25


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_resumed_run_has_the_weights_rates_and_order_of_one_that_was_never_stopped(
    build: Build, tmp_path: Path, stop: int
) -> None:
    """speculators 900 and 1026: a resume that restarts the schedule or the shuffle."""
    whole = train(build, tmp_path / "whole", save_every=1)
    learner, corpus = learner_of(build, save_every=1)
    steps = [packs for epoch in schedule(corpus, learner.settings) for packs in epoch]
    progress = SavedRun(tmp_path / "cut" / "checkpoint", stage._key(learner.settings, corpus))
    epochs = schedule(corpus, learner.settings)
    judged = stage.judge_heldout(corpus, learner.ends, learner.settings)
    ends_of_epoch = {sum(map(len, epochs[: number + 1])) for number in range(len(epochs))}
    for packs in steps[:stop]:
        rate = learning_rate(progress.step, len(steps), learner.settings.lr, learner.settings.warmup)
        result = learner.step(load_packs(corpus, packs), rate)
        progress.step += 1
        progress.rows.append(stage._row(progress.step, 1 if progress.step <= len(epochs[0]) else 2, rate, result))
        progress.save(learner)
        if progress.step in ends_of_epoch:
            stage._end_epoch(learner, judged, progress, "")
    resumed = train(build, tmp_path / "cut", save_every=1)
    assert sha256_folder(resumed / "checkpoint") == sha256_folder(whole / "checkpoint")
    assert (resumed / "log.csv").read_bytes() == (whole / "log.csv").read_bytes()


def test_a_training_that_diverges_is_an_error_and_leaves_no_checkpoint(build: Build, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"the loss is (nan|inf) at step \d+ of \d+: training diverged; lower train\.lr"
    ):
        train(build, tmp_path, lr=1e30, epochs=2)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(("name", "heldout"), [("aux", False), ("last", False), ("aux", True), ("last", True)])
def test_a_row_with_damaged_states_is_named_and_not_taken_for_divergence(
    build: Build, tmp_path: Path, name: str, heldout: bool
) -> None:
    _, corpus = learner_of(build)
    row = next(ref for ref in (corpus.heldout if heldout else corpus.training) if ref.dataset == "a")
    hidden = shutil.copytree(build.hidden("a"), tmp_path / "a" / "hidden")
    at = HiddenStates(hidden).index[row.number]
    tensors = load_tensors(hidden / at.shard)
    tensors[name][at.offset + row.prompt_length] = torch.inf
    save_tensors(hidden / at.shard, tensors)
    stamps = shutil.copytree(build.stamps, tmp_path / "stamps")
    write_json(stamps / "a.json", {**read_json(stamps / "a.json"), "sha256": sha256_folder(hidden)})
    with pytest.raises(
        ArtifactError,
        match=rf"{at.shard}: row '{row.id}': {name} is not finite at 1 of {row.length} tokens, "
        rf"first at {row.prompt_length}:",
    ):
        train(build, tmp_path, hidden={"a": hidden}, stamps=stamps, epochs=1)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize("save_every", [1, 500])
def test_states_with_a_flipped_bit_are_refused_and_nothing_learned_of_them_is_kept(
    build: Build, tmp_path: Path, save_every: int
) -> None:
    hidden = shutil.copytree(build.hidden("a"), tmp_path / "a" / "hidden")
    shard = next(hidden.glob("shard-*"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1  # among the states: ids have a checksum of their own
    shard.write_bytes(data)
    with pytest.raises(
        ArtifactError, match=r"a.hidden: the files' digest is \w+, .*a.json has \w+: a file changed after extraction"
    ):
        train(build, tmp_path, hidden={"a": hidden}, epochs=1, save_every=save_every)
    assert not list(tmp_path.glob("*checkpoint*"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("weights.fc.weight"), r"weights.fc.weight is missing; \[32, 96\] is needed"),
        (
            lambda tensors: tensors.update({"exp_avg.fc.weight": torch.zeros(3)}),
            r"exp_avg.fc.weight is \[3\]; \[32, 96\] is needed",
        ),
    ],
)
def test_a_saved_run_that_is_damaged_is_named(build: Build, tmp_path: Path, change: Any, said: str) -> None:
    learner, corpus = learner_of(build)
    learner.step(load_packs(corpus, schedule(corpus, learner.settings)[0][0]), 0.1)
    progress = SavedRun(tmp_path / "checkpoint", "key")
    progress.save(learner)
    path = tmp_path / ".checkpoint.partial" / "state.safetensors"
    tensors, metadata = load_tensors(path), TensorFile(path).metadata
    change(tensors)
    save_tensors(path, tensors, metadata)
    with pytest.raises(
        ArtifactError,
        match=rf"state.safetensors: the saved run is damaged: {said}; remove .*checkpoint.partial to begin anew",
    ):
        progress.restore(learner)
    save_tensors(path, tensors, {"state": "{"})
    with pytest.raises(ArtifactError, match=r"the saved run is damaged .unexpected end of data"):
        progress.restore(learner)


def test_states_of_another_vocabulary_than_the_targets_are_refused(build: Build) -> None:
    manifest, ends = HiddenStates(build.hidden("a")).manifest, open_ends(build.model)
    for size in (299, 301):
        with pytest.raises(ArtifactError, match=f"vocabulary 300; the hidden states have {size}"):
            check_shape(manifest.model_copy(update={"vocab_size": size}), ends, "here")


def test_torch_is_set_as_it_was_after_a_run_and_after_a_failure(build: Build, tmp_path: Path) -> None:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with pytest.raises(ConfigError):
        train(build, tmp_path, lr=1e30, epochs=1)
    train(build, tmp_path, epochs=1, ttt_steps=1)
    assert (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ) == before


def test_a_saved_run_of_other_settings_is_not_taken_up(build: Build, tmp_path: Path) -> None:
    learner, corpus = learner_of(build)
    for packs in schedule(corpus, learner.settings)[0][:2]:
        learner.step(load_packs(corpus, packs), 0.1)
    progress = SavedRun(tmp_path / "x" / "checkpoint", "key of other settings")
    progress.step = 2
    progress.save(learner)
    assert sha256_folder(train(build, tmp_path / "x") / "checkpoint") == sha256_folder(
        train(build, tmp_path / "y") / "checkpoint"
    )


def test_a_file_without_a_saved_run_in_the_place_of_one_is_not_taken_up(build: Build, tmp_path: Path) -> None:
    learner, _ = learner_of(build)
    (tmp_path / ".checkpoint.partial").mkdir()
    save_tensors(tmp_path / ".checkpoint.partial" / "state.safetensors", {"a": torch.zeros(1)})
    assert not SavedRun(tmp_path / "checkpoint", "key").restore(learner)


def test_a_saved_run_of_other_code_is_not_taken_up(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, corpus = learner_of(build)
    before = stage._key(learner.settings, corpus)
    monkeypatch.setattr(stage, "code_digest", lambda name, _notes: f"another {name}".encode())
    assert stage._key(learner.settings, corpus) != before


def test_processes_that_would_go_on_from_different_steps_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not see the first process's files would begin anew, and wait forever."""
    monkeypatch.setattr(ProcessGroup, "total", lambda _self, _steps: torch.tensor([40, 0]))
    with pytest.raises(
        ArtifactError,
        match=r"different steps, \[40, 0\] by rank: build/drafter must be on storage that all machines share",
    ):
        ProcessGroup(0, 2).agree(40, torch.device("cpu"))


def test_the_loss_is_a_weighted_mean(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal weights change nothing; a row of weight 2 counts as two rows."""
    learner, corpus = learner_of(build)
    (first, second) = schedule(corpus, learner.settings)[0][0][0][:2]
    plain = learner.step([corpus.packed([first, second])], 0.0)
    twice = learner.step([corpus.packed([first, second, first])], 0.0)
    once = type(corpus).weights
    monkeypatch.setattr(type(corpus), "weights", lambda self, ref: once(self, ref) * 0.5)
    assert learner.step([corpus.packed([first, second])], 0.0).loss == pytest.approx(plain.loss, rel=1e-5)
    monkeypatch.setattr(type(corpus), "weights", lambda self, ref: once(self, ref) * (2 if ref == first else 1))
    weighed = learner.step([corpus.packed([first, second])], 0.0)
    assert weighed.loss == pytest.approx(twice.loss, rel=1e-5)
    assert weighed.grad_norm == pytest.approx(twice.grad_norm, rel=1e-4)


_TWO = """
import sys; from pathlib import Path
from contextlib import nullcontext
from torch import distributed
from pipeline.stages.train import stage
from pipeline.stages.train.learner import Learner
from pipeline.stages.train.processes import joined
from tests.tiny import train_settings
b, out = Path(sys.argv[1]), Path(sys.argv[2])
def run(parallel):
    config = stage.Config(train=train_settings(accumulate=3, save_every=1, parallel=parallel), names=["a", "b"])
    folder = out/parallel
    stage.run(config, stamps=b/"extracted", hidden={n: b/n/"hidden" for n in "ab"}, record=b/"fingerprint.json",
              model=b/"model", checkpoint=folder/"checkpoint", log=folder/"log.csv")
step, done = Learner.step, []
def killed_in_the_fourth_step(learner, packs, rate):
    done.append(learner.sharded)
    if len(done) == 4:
        raise KeyboardInterrupt
    return step(learner, packs, rate)
with joined("cpu") as group:
    stage.joined = lambda device: nullcontext(group)  # processes join once
    run("ddp")
    Learner.step = killed_in_the_fourth_step
    try:
        run("fsdp")
    except KeyboardInterrupt:
        assert done == [True] * 4
        distributed.barrier()  # a killed process starts anew after all have ended: the first has written its file
    Learner.step = step
    run("fsdp")
"""


def test_two_processes_over_gloo_give_the_weights_of_one_whole_or_sharded_and_also_after_a_kill(
    build: Build, tmp_path: Path
) -> None:
    """With three packs a step one process has two and the other one; in the last step of an epoch one has none."""
    (tmp_path / "two.py").write_text(_TWO)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [str(tmp_path / "two.py"), str(build.folder), str(tmp_path)]
    run = subprocess.run(
        command,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=5 * TIMEOUT_S,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.count("continues after step 3") == 1
    train(build, tmp_path / "one", accumulate=3, save_every=1)
    one = load_tensors(tmp_path / "one" / "checkpoint" / "model.safetensors")
    for parallel in ("ddp", "fsdp"):
        two = load_tensors(tmp_path / parallel / "checkpoint" / "model.safetensors")
        assert one.keys() == two.keys()
        for name, tensor in one.items():
            torch.testing.assert_close(two[name], tensor, atol=1e-5, rtol=1e-5, msg=f"{parallel}: {name}")


def test_gradient_accumulation_is_one_large_batch(build: Build) -> None:
    few, corpus = learner_of(build, accumulate=4)
    (packs, *_) = schedule(corpus, few.settings)[0]
    one, _ = learner_of(build)
    split = few.step(load_packs(corpus, packs), 0.0)
    whole = one.step(load_packs(corpus, [[ref for refs in packs for ref in refs]]), 0.0)
    assert split.loss == pytest.approx(whole.loss, rel=1e-5)
    assert split.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)


@pytest.mark.parametrize("loss", ["kl", "lk_alpha", "lk_lambda"])
def test_bfloat16_autocast_stays_close_to_float32(build: Build, loss: str) -> None:
    results = []
    for dtype in ("float32", "bfloat16"):
        learner, corpus = learner_of(build, dtype=dtype, loss=loss)
        results.append(learner.step(load_packs(corpus, schedule(corpus, learner.settings)[0][0]), 0.0))
    assert results[1].loss == pytest.approx(results[0].loss, rel=0.03)
    assert results[1].grad_norm == pytest.approx(results[0].grad_norm, rel=0.1)


def test_the_rate_rises_then_falls_along_a_cosine_to_zero() -> None:
    rates = [learning_rate(step, 100, 1.0, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[55] == pytest.approx(0.5)
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.001


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=60), st.integers(2, 80), st.integers(0, 5))
def test_an_epoch_has_every_row_once_and_packs_keep_their_size(lengths: list[int], tokens: int, epoch: int) -> None:
    rows = [RowRef("d", number, str(number), length, 1) for number, length in enumerate(lengths)]
    packs = packs_of_epoch(rows, tokens, 0, epoch)
    assert sorted(ref.number for refs in packs for ref in refs) == list(range(len(rows)))
    assert all(sum(ref.length for ref in refs) <= tokens or len(refs) == 1 for refs in packs)
    assert packs == packs_of_epoch(rows, tokens, 0, epoch)
    assert len(rows) < 8 or packs != packs_of_epoch(rows, tokens, 0, epoch + 1)


def test_packs_waste_little() -> None:
    rows = [RowRef("d", number, str(number), 20 + number * 37 % 300, 1) for number in range(500)]
    packs = pack(rows, 1024)
    assert sum(row.length for row in rows) / (1024 * len(packs)) > 0.95


def test_held_out_rows_are_not_trained_on_and_stay_held_out_when_a_row_comes(build: Build) -> None:
    _, corpus = learner_of(build)
    assert 0.1 * len(SHAPES) <= len(corpus.heldout) <= 0.4 * len(SHAPES)
    assert not {(ref.dataset, ref.id) for ref in corpus.heldout} & {(ref.dataset, ref.id) for ref in corpus.training}
    fewer = open_corpus_of(build, 0.1)
    assert set(fewer.heldout) <= set(corpus.heldout)


def open_corpus_of(
    build: Build, heldout: float = 0.2, names: tuple[str, ...] = ("a", "b"), target: str | None = None
) -> Any:
    sha256 = target or open_ends(build.model).source.sha256
    return open_corpus(
        build.stamps,
        {name: build.hidden(name) for name in names},
        list(names),
        sha256,
        heldout,
        weights_of("completion+tools"),
    )


def test_a_missing_stamp_and_a_left_over_one_are_named(build: Build) -> None:
    with pytest.raises(
        ArtifactError,
        match=r"stamps of \['a', 'b'\]; params.yaml names \['a', 'c'\]: missing \['c'\].*left over \['b'\]",
    ):
        open_corpus(build.stamps, {}, ["a", "c"], "", 0.1, weights_of("completion"))


def test_states_of_another_target_are_refused(build: Build) -> None:
    with pytest.raises(ArtifactError, match=f"hidden states are of target .*; this build's weights are {'f' * 16}"):
        open_corpus_of(build, target="f" * 64)


def test_an_empty_training_set_is_refused(tmp_path: Path, kimi: TargetRecord) -> None:
    build = Build(tmp_path, kimi)
    build.extract([], "a")
    with pytest.raises(InputError, match=r"no row to train on in \['a'\]"):
        open_corpus_of(build, names=("a",))


def test_datasets_taken_from_different_layers_are_refused(tmp_path: Path, kimi: TargetRecord) -> None:
    build = Build(tmp_path, kimi)
    build.extract(random_rows(SHAPES), "a")
    build.extract(random_rows(SHAPES), "b", layers=[1, 3, 4])
    with pytest.raises(
        ArtifactError, match=r"hidden states of a and b differ in layer_ids: \[2, 4, 5\] and \[1, 3, 4\]"
    ):
        open_corpus_of(build)


def test_a_target_of_another_width_is_refused_with_both_numbers(tmp_path: Path, kimi: TargetRecord) -> None:
    build = Build(tmp_path, kimi)
    build.extract(random_rows(SHAPES), "a")
    save_target(build.model, hidden_size=40, num_attention_heads=5, num_key_value_heads=5)
    manifest = build.hidden("a") / "manifest.json"
    write_json(manifest, {**read_json(manifest), "target_sha256": open_ends(build.model).source.sha256})
    with pytest.raises(AerieError, match="hidden size 40; the hidden states have 32"):
        train(build, tmp_path / "out", names=("a",))


def test_a_stamp_that_disagrees_with_its_folder_is_refused(tmp_path: Path, kimi: TargetRecord) -> None:
    build = Build(tmp_path, kimi)
    build.extract(random_rows(SHAPES), "a")
    stamp = build.stamps / "a.json"
    whole = read_json(stamp)
    for change, said in (({"rows": 3}, "has 3 rows"), ({"tokens": 5}, "of 5 tokens"), ({"dataset": "b"}, "for 'b'")):
        write_json(stamp, {**whole, **change})
        with pytest.raises(ArtifactError, match=rf"has 24 rows of \d+ tokens; its stamp .*{said}"):
            open_corpus_of(build, names=("a",))
