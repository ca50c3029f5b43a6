"""The reuse cache: what is found is what was put there, or nothing."""

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from pipeline.core.errors import ConfigError
from pipeline.core.files.digests import sha256_file
from pipeline.core.reuse import cache as module
from pipeline.core.reuse.cache import ReuseCache, open_cache
from pipeline.core.reuse.code_digest import digest
from pipeline.core.reuse.eviction import collect
from pipeline.core.reuse.index import FILE, CachedPiece, Index, SegmentEntry
from pipeline.core.reuse.limit import most_bytes
from pipeline.core.reuse.segment_files import segment_path
from tests.conftest import ROOT
from tests.polling import TIMEOUT_S


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AERIE_STORE", str(tmp_path / "store"))
    monkeypatch.delenv("AERIE_REUSE", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return tmp_path / "store" / "rows"


WIDTH = 8
"""Bytes of a result."""


def result(number: int) -> bytes:
    return number.to_bytes(WIDTH, "little")


def taken(cache: ReuseCache, piece: CachedPiece | None) -> bytes | None:
    """Return a result of an earlier build, or None."""
    path = None if piece is None else cache.file(piece.segment)
    return None if path is None or piece is None else path.read_bytes()[piece.at * WIDTH : (piece.at + 1) * WIDTH]


def build(numbers: list[int], *inputs: bytes) -> tuple[list[int], int]:
    """A stage that writes the results of seven numbers into a file; return all results and how many it computed."""
    computed = 0
    out: list[int] = []
    with open_cache("extract", *inputs) as cache, TemporaryDirectory() as folder:
        for start in range(0, len(numbers), 7):
            part = numbers[start : start + 7]
            keys = [cache.key(str(n).encode()) for n in part]
            found = [taken(cache, piece) for piece in cache.find(keys)]
            missing = [at for at, known in enumerate(found) if known is None]
            if missing:
                path = Path(folder) / str(start)
                path.write_bytes(b"".join(result(part[at]) for at in missing))
                cache.add_file(path, [(keys[at], number, 1) for number, at in enumerate(missing)])
            computed += len(missing)
            out += [int.from_bytes(known or result(n), "little") for n, known in zip(part, found, strict=True)]
    return out, computed


def test_what_was_computed_once_is_taken_the_next_time_and_put_in_order(store: Path) -> None:
    rng = Random(0)
    known: set[int] = set()
    for _ in range(15):
        numbers = rng.sample(range(60), rng.randrange(1, 40))
        out, computed = build(numbers)
        assert out == numbers
        assert computed == len(set(numbers) - known)
        known |= set(numbers)


def test_anything_else_that_decides_makes_it_compute_again() -> None:
    assert build([1, 2, 3], b"config")[1] == 3
    assert build([1, 2, 3], b"config")[1] == 0
    assert build([1, 2, 3], b"other config")[1] == 3
    assert build([1, 2, 3], b"con", b"fig")[1] == 3


def test_edited_code_makes_it_compute_again_and_comments_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.core.reuse import code_digest as code

    class Notes(dict[bytes, bytes]):
        def note(self, key: bytes) -> bytes | None:
            return self.get(key)

        set_note = dict.__setitem__

    package = tmp_path / "pipeline" / "stages" / "audit"
    package.mkdir(parents=True)
    (tmp_path / "requirements.lock").write_text("")
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    monkeypatch.setattr(code, "ROOT", tmp_path)
    found = []
    for text in ("x = 1\n", "x = 1  # a comment\n", "x = 2\n", "x = 1\n"):
        (package / "stage.py").write_text(text)
        code._sources.cache_clear()
        found.append(code.code_digest("audit", Notes()))
    code._sources.cache_clear()
    assert found[0] == found[1] == found[3] != found[2]


def test_code_that_was_edited_while_this_process_runs_takes_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.core.reuse import code_digest as code

    assert [build([1])[1] for _ in range(2)] == [1, 0]
    monkeypatch.setattr(code, "STARTED", 0.0)
    code.edited_meanwhile.cache_clear()
    assert [build([1])[1] for _ in range(2)] == [1, 1]
    code.edited_meanwhile.cache_clear()


def damage_a_byte(store: Path) -> None:
    for path in store.glob("??/*"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def cut_short(store: Path) -> None:
    for path in store.glob("??/*"):
        path.write_bytes(path.read_bytes()[:-1])


def remove_files(store: Path) -> None:
    for path in store.glob("??/*"):
        path.unlink()


def move_pieces(store: Path) -> None:
    with sqlite3.connect(store / FILE) as db:
        db.execute("UPDATE pieces SET at = 0")
    db.close()


def no_database(store: Path) -> None:
    for path in store.glob(f"{FILE}*"):
        path.unlink()
    (store / FILE).write_bytes(b"no database" * 1000)


def damaged_pages(store: Path) -> None:
    with sqlite3.connect(store / FILE) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    data = bytearray((store / FILE).read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    (store / FILE).write_bytes(data)


def a_folder_in_its_place(store: Path) -> None:
    for path in store.glob(f"{FILE}*"):
        path.unlink()
    (store / FILE).mkdir()


@pytest.mark.parametrize(
    "spoil", [damage_a_byte, cut_short, remove_files, move_pieces, no_database, damaged_pages, a_folder_in_its_place]
)
def test_a_damaged_store_is_never_trusted_and_never_fails_a_build(store: Path, spoil: Callable[[Path], None]) -> None:
    numbers = list(range(20))
    build(numbers)
    spoil(store)
    for _ in range(3):
        out, computed = build(numbers)
        assert out == numbers
    if spoil is not a_folder_in_its_place:
        assert computed == 0  # it mended itself


def test_a_store_that_cannot_be_written_or_is_switched_off_is_done_without(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERIE_REUSE", "off")
    assert [build([1, 2])[1] for _ in range(2)] == [2, 2]
    assert not store.exists()
    monkeypatch.delenv("AERIE_REUSE")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AERIE_STORE", str(tmp_path / "file"))
    assert [build([1, 2])[1] for _ in range(2)] == [2, 2]
    monkeypatch.delenv("AERIE_STORE")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr(module, "shared_folder", lambda: None)  # no git repository
    assert [build([1, 2])[1] for _ in range(2)] == [2, 2]


@pytest.mark.parametrize(
    ("said", "size"),
    [("", 8 << 30), ("off", 0), ("0", 0), ("500MB", 500_000_000), ("1.5 GiB", 3 << 29), ("7", 7), ("2k", 2000)],
)
def test_the_limit_is_a_size_or_off(said: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_REUSE", said)
    assert most_bytes() == size


def test_a_limit_that_is_no_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_REUSE", "lots")
    with pytest.raises(ConfigError, match="AERIE_REUSE='lots': needs `off`, or the most bytes"), open_cache("extract"):
        pass


def test_the_longest_unused_goes_first_when_there_is_too_much(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build([1])
    build([2])
    build([1])  # used again, so no longer the oldest
    one = next(store.glob("??/*")).stat().st_size
    monkeypatch.setenv("AERIE_REUSE", str(2 * one + one // 2))
    build([3])
    assert sum(path.stat().st_size for path in store.glob("??/*")) <= 2 * one + one // 2
    monkeypatch.delenv("AERIE_REUSE")
    assert [build([number])[1] for number in (1, 3, 2)] == [0, 0, 1]


def test_a_file_that_a_build_still_has_costs_nothing_and_counts_when_the_build_lets_go(
    store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"states" * 100)
    cache = ReuseCache("extract", store, 1 << 30)
    name = bytes.fromhex(cache.add_file(path, [(b"key", 0, 3)]))
    assert segment_path(store, name).stat().st_ino == path.stat().st_ino
    index = Index(store)
    assert collect(index, store, 1) == 0
    path.unlink()
    assert cache.file(name) == segment_path(store, name)
    assert collect(index, store, 1) == 600
    assert cache.find([b"key"]) == [None]
    cache.close()
    index.close()


def test_what_dvc_keeps_is_found_in_its_cache_and_not_kept_twice(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    path = tmp_path / "shard"
    path.write_bytes(b"states" * 100)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    clone = tmp_path / "clone"
    (clone / ".dvc").mkdir(parents=True)
    (clone / ".dvc" / "config").write_text(
        "[core]\n    analytics = false\n['remote \"x\"']\n    url = /y\n[cache]\n    dir = ../elsewhere\n"
    )
    monkeypatch.setenv("DVC_ROOT", str(clone))
    cache = ReuseCache("extract", store, 1 << 30)
    name = bytes.fromhex(cache.add_file(path, [(b"key", 0, 3)]))
    assert not segment_path(store, name).exists()
    cached = clone / "elsewhere" / "files" / "md5" / md5[:2] / md5[2:]
    cached.parent.mkdir(parents=True)
    cached.write_bytes(path.read_bytes())
    found = cache.file(name)
    assert found is not None
    assert found.samefile(cached)
    assert sha256_file(found) == name.hex()
    cached.write_bytes(b"spoilt")
    again = ReuseCache("extract", store, 1 << 30)
    assert again.file(name) is None
    for one in (cache, again):
        one.close()


def test_a_killed_writer_leaves_a_file_that_is_removed_when_it_is_old(store: Path) -> None:
    build([1])
    stranger = store / "ab" / ("0" * 62)
    stranger.parent.mkdir(parents=True, exist_ok=True)
    stranger.write_bytes(b"half")
    build([2])
    assert stranger.exists()
    os.utime(stranger, (0, 0))
    build([3])
    assert not stranger.exists()


@pytest.mark.slow
def test_several_processes_at_once_find_and_add_without_a_fault(store: Path) -> None:
    script = (
        "from random import Random; import sys\nfrom tests.core.reuse.test_cache import build\n"
        "rng = Random(int(sys.argv[1]))\n"
        "for _ in range(6):\n    numbers = rng.sample(range(200), 60)\n    assert build(numbers)[0] == numbers\n"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", script, str(n)], cwd=ROOT, stderr=subprocess.PIPE) for n in range(2)
    ]
    for run in runs:
        said = run.communicate(timeout=TIMEOUT_S)[1]
        assert (run.returncode, said) == (0, b"")
    assert build(list(range(200)))[1] < 60


def test_a_segment_without_its_entry_and_an_entry_without_its_segment_are_both_nothing(store: Path) -> None:
    build([1, 2, 3])
    index = Index(store)
    (segment,) = index.segments()
    index.add(SegmentEntry(digest(b"gone"), "extract", 1, None, 0.0), [(b"k", 0, 1)])
    index.close()
    cache = ReuseCache("extract", store, 1 << 30)
    assert taken(cache, cache.find([b"k"])[0]) is None
    assert cache.file(segment.name) is not None
    cache.close()


def test_a_file_is_read_again_for_its_digest_only_when_it_was_written_to(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, read = tmp_path / "shard", list[Path]()
    shard.write_bytes(b"states" * 1000)

    def counting(path: Path) -> str:
        read.append(path)
        return sha256_file(path)

    monkeypatch.setattr(module, "sha256_file", counting)
    with open_cache("extract") as cache:
        name = bytes.fromhex(cache.add_file(shard, [(b"key", 0, 1)]))
    with open_cache("extract") as cache:
        assert cache.file(name) is not None
        assert read == []
    changed = bytearray(shard.read_bytes())
    changed[10] ^= 1
    shard.write_bytes(changed)  # the store has a second name of the same file
    with open_cache("extract") as cache:
        assert cache.file(name) is None
    assert len(read) == 1
