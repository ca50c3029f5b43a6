"""Looking at what is kept, and letting go of it."""

from pathlib import Path

import pytest

from pipeline.commands import reuse
from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.reuse.index import FILE
from tests.core.reuse.test_cache import build, damage_a_byte
from tests.core.reuse.test_cache import store as store


def test_stats_verify_gc_and_clear(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reuse.main(["stats"]) == 0
    assert "nothing is kept" in capsys.readouterr().out
    build([1, 2, 3])
    reuse.main(["stats"])
    shown = capsys.readouterr().out.split()
    assert shown[shown.index("extract") :][:5] == ["extract", "│", "3", "│", "1"]
    reuse.main(["verify"])
    assert capsys.readouterr().out == "0 damaged files dropped\n"
    damage_a_byte(store)
    reuse.main(["verify"])
    assert capsys.readouterr().out == "1 damaged files dropped\n"
    build([1, 2, 3])
    monkeypatch.setenv("AERIE_REUSE", "off")
    reuse.main(["gc"])
    assert list(store.glob("??/*")) == []
    reuse.main(["clear"])
    assert not store.exists()


def test_a_damaged_index_and_a_missing_repository_are_one_message(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build([1])
    for path in store.glob(f"{FILE}*"):
        path.unlink()
    (store / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(ArtifactError, match="run `python -m pipeline reuse clear`"):
        reuse.main(["stats"])
    monkeypatch.setattr(reuse, "shared_folder", lambda: None)
    with pytest.raises(InputError, match="not a git repository"):
        reuse.main(["stats"])
