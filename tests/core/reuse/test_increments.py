"""An incremental build is a clean one, byte for byte, whatever was edited, killed or damaged before."""

from collections import Counter
from pathlib import Path

import pytest

from pipeline.core.reuse.row_cache import Kept
from pipeline.formats.schema.target import TargetRecord
from pipeline.model.tokenizer.tokenizer import Tokenizer
from tests.conftest import SHARE
from tests.core.reuse.world import World, killed_after, make_small_target, quicken, spoil

pytestmark = pytest.mark.slow

SEQUENCES, GROUPS = 200, 4


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, kimi: TargetRecord) -> Path:
    return make_small_target(tmp_path_factory.mktemp("small"), kimi)


@pytest.mark.parametrize("group", range(-(-GROUPS // SHARE)))
def test_after_any_edits_an_incremental_build_writes_what_a_clean_one_writes(
    group: int, small: Path, tmp_path: Path, kimi: TargetRecord, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    quicken(monkeypatch, tokenizer)
    monkeypatch.setenv("AERIE_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("DVC_ROOT", raising=False)
    taken: Counter[bool] = Counter()
    find = Kept.find

    def counting(kept: Kept, keys: list[bytes]) -> list[object]:
        found = find(kept, keys)
        taken.update(piece is not None for piece in found)
        return found  # type: ignore[return-value]

    monkeypatch.setattr(Kept, "find", counting)
    world = World(tmp_path / "world", group, kimi)
    world.build(small)
    for number in range(SEQUENCES // GROUPS):
        monkeypatch.delenv("AERIE_REUSE", raising=False)
        story = [world.edit() for _ in range(world.rng.randrange(1, 5))]
        chance = world.rng.random()
        if chance < 0.2:
            with killed_after(writes := world.rng.randrange(12)):
                world.build(small)
            story.append(f"killed after {writes} files")
            story += [world.edit() for _ in range(world.rng.randrange(2))]
        elif chance < 0.4:
            story.append(spoil(tmp_path / "store" / "rows", world.rng))
        incremental = world.build(small)
        monkeypatch.setenv("AERIE_REUSE", "off")
        clean = world.build(small)
        assert incremental.keys() == clean.keys(), (group, number, story)
        assert [name for name in clean if incremental[name] != clean[name]] == [], (group, number, story)
    assert taken[True] > taken[False] / 2  # it was no clean build each time
