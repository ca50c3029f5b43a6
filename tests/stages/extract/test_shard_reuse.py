"""Reuse of the states of earlier builds: which are taken, and from where."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.core.errors import EngineError
from pipeline.core.files.digests import sha256_folder
from pipeline.formats.hidden_states import HiddenStates
from pipeline.formats.schema.target import TargetRecord
from pipeline.stages.extract import local
from pipeline.stages.extract.config import EngineSection
from pipeline.stages.extract.forward import states
from tests.stages.extract.engine_server import PROBES, EngineServer
from tests.tiny import LAYERS, Build, random_rows

pytestmark = pytest.mark.slow

SHAPES = [(f"row-{number}", 5, 15 + number * 7 % 40) for number in range(60)]
SETTINGS: dict[str, Any] = {"tokens_per_batch": 120, "shard_bytes": 150_000}


@pytest.fixture
def build(tmp_path: Path, kimi: TargetRecord, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setenv("AERIE_STORE", str(tmp_path / "clone" / ".git" / "aerie"))
    monkeypatch.delenv("AERIE_REUSE", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return Build(tmp_path / "build", kimi)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of tokens of each batch that the target computes."""
    seen: list[int] = []

    def counting(target: Any, layer_ids: list[int], rows: list[Any], *, packed: bool) -> Any:
        seen.append(sum(map(len, rows)))
        return states(target, layer_ids, rows, packed=packed)

    monkeypatch.setattr(local, "states", counting)
    return seen


def clean(build: Build, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the digest of the states of a build without reuse."""
    with monkeypatch.context() as patched:
        patched.setenv("AERIE_REUSE", "off")
        return sha256_folder(build.extract(rows, "clean", **SETTINGS))


def commit(hidden: Path, clone: Path) -> None:
    """Move an out into DVC's cache and out of the workspace, as DVC does after and before a stage."""
    for path in hidden.iterdir():
        md5 = hashlib.md5(path.read_bytes()).hexdigest()
        to = clone / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
        to.chmod(0o444)
    shutil.rmtree(hidden)


def test_added_rows_cost_their_batches_and_unchanged_shards_are_links_into_dvcs_cache(
    build: Build, tmp_path: Path, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    monkeypatch.setenv("DVC_ROOT", str(clone))
    rows = random_rows(SHAPES)
    commit(build.extract(rows, **SETTINGS), clone)
    whole = sum(computed)
    assert not list((clone / ".git" / "aerie" / "rows").glob("??/*"))  # an index only
    computed.clear()
    more = [*rows, *random_rows([("new", 5, 30)], seed=1)]
    hidden = build.extract(more, **SETTINGS)
    assert 0 < sum(computed) < whole / 5
    linked = [path for path in hidden.glob("shard-*") if path.stat().st_nlink > 1]
    assert len(linked) == len(list(hidden.glob("shard-*"))) - 1
    assert sha256_folder(hidden) == clean(build, more, monkeypatch)
    computed.clear()
    shutil.rmtree(clone / ".dvc")  # dvc gc, or another machine's cache: everything is computed again
    again = build.extract(more, **SETTINGS)
    assert sum(computed) > whole
    assert sha256_folder(again) == clean(build, more, monkeypatch)


def test_what_a_killed_run_had_finished_is_taken_even_when_the_rows_changed_after_it(
    build: Build, computed: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DVC_ROOT", str(tmp_path / "clone"))

    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    rows = random_rows(SHAPES)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("pipeline.stages.extract.stage.write_batches", killed)
        build.extract(rows, **SETTINGS)
    whole = sum(computed)
    computed.clear()
    fewer = [*rows[:50], *rows[51:]]
    hidden = build.extract(fewer, **SETTINGS)
    assert sum(computed) < whole / 3
    assert sha256_folder(hidden) == clean(build, fewer, monkeypatch)


def test_other_weights_layers_or_dtypes_take_nothing(build: Build, computed: list[int]) -> None:
    rows = random_rows(SHAPES[:10])
    build.extract(rows, **SETTINGS)
    for changes in ({"layers": [1, 2, 3]}, {"dtype": "bfloat16"}, {"compute_dtype": "bfloat16"}):
        computed.clear()
        build.extract(rows, **SETTINGS, **changes)
        assert len(computed) > 1
    computed.clear()
    build.extract(rows, **{**SETTINGS, "max_length": 300, "shard_bytes": 60_000})  # neither decides a batch's states
    assert computed == []


SIX = random_rows([(f"row-{number}", 5, 15) for number in range(6)])
REPORT = b'{"c": "{\\n \\"eagle_aux_hidden_state_layer_ids\\": [2, 4, 5, 8]"}'
"""vLLM's report of its layers in its development mode."""


def ask(build: Build, server: EngineServer, name: str, rows: list[dict[str, Any]] = SIX) -> Path:
    section = EngineSection(url=server.url, folder=str(server.folder), concurrency=2, attempts=1)
    return build.extract(rows, name, section, backend=server.kind, **{**SETTINGS, "shard_bytes": 1024})


def test_states_of_a_server_that_was_launched_for_other_layers_do_not_outlive_its_correct_launch(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of layers and the last one are right, so no reply shows the fault."""
    expected = HiddenStates(build.extract(SIX, "local", tokens_per_batch=1))
    with EngineServer("vllm", build.model, [1, 3, 6, LAYERS], tmp_path) as wrong:
        found = HiddenStates(ask(build, wrong, "data"))
    assert not torch.equal(found[0].aux, expected[0].aux)
    assert "does not report which layers it returns, so their states are not kept" in capsys.readouterr().out
    with EngineServer("vllm", build.model, [2, 4, 5, LAYERS], tmp_path) as right:
        found = HiddenStates(ask(build, right, "data"))
        assert len(right.asked) == PROBES + len(SIX)
    for number in range(len(SIX)):
        assert torch.equal(found[number].aux, expected[number].aux)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_states_of_a_server_that_reports_the_wanted_layers_are_taken_again(
    build: Build, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with EngineServer(kind, build.model, [2, 4, 5, LAYERS], tmp_path) as server:
        if kind == "vllm":
            server.says = {"/server_info?config_format=json": REPORT}
        first = sha256_folder(ask(build, server, "first"))
        asked = len(server.asked)
        assert sha256_folder(ask(build, server, "second")) == first
        assert len(server.asked) == asked + PROBES
    assert "0 tokens to compute" in capsys.readouterr().out


def test_half_made_work_of_a_server_that_did_not_report_its_layers_is_not_taken_up_by_one_that_does(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with EngineServer("vllm", build.model, [1, 3, 6, LAYERS], tmp_path) as wrong:
        wrong.status = lambda nth: 200 if nth <= PROBES + 4 else 400
        with pytest.raises(EngineError):
            ask(build, wrong, "data")
        assert list(build.hidden().with_name(".hidden.partial").glob("shard-*"))
        with pytest.raises(EngineError):
            ask(build, wrong, "data")
        assert (
            "shards of an earlier run stay: if the server had been launched for other layers" in capsys.readouterr().out
        )
    with EngineServer("vllm", build.model, [2, 4, 5, LAYERS], tmp_path) as right:
        right.says = {"/server_info?config_format=json": REPORT}
        ask(build, right, "data")
        assert len(right.asked) == PROBES + len(SIX)
