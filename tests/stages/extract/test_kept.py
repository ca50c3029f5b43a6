"""States of earlier builds: which are taken, and from where."""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.files.digests import sha256_folder
from pipeline.formats.schema.target import TargetRecord
from pipeline.stages.extract import local
from pipeline.stages.extract.forward import states
from tests.tiny import Build, random_rows

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
    """Tokens of each batch that the target ran over."""
    seen: list[int] = []

    def counting(target: Any, layer_ids: list[int], rows: list[Any], *, packed: bool) -> Any:
        seen.append(sum(map(len, rows)))
        return states(target, layer_ids, rows, packed=packed)

    monkeypatch.setattr(local, "states", counting)
    return seen


def clean(build: Build, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> str:
    """Digest of what a build without reuse writes."""
    with monkeypatch.context() as patched:
        patched.setenv("AERIE_REUSE", "off")
        return sha256_folder(build.extract(rows, "clean", **SETTINGS))


def commit(hidden: Path, clone: Path) -> None:
    """Move an out into DVC's cache, as DVC does after a stage, and away from the workspace, as it does before the next run."""
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
