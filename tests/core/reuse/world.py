"""A small dataset that changes by random edits, and `extract` run on it in one process, with its reuse cache."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.core.files.json_file import write_json
from pipeline.core.reuse.cache import ReuseCache
from pipeline.core.reuse.index import FILE
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.weights.source import find_source
from pipeline.model.weights.target import open_model
from pipeline.stages.extract import stage as extract
from tests.parquet import write_rows
from tests.tiny import extract_settings, save_record, save_target, token_row

VOCABULARY = 200
"""Ids from 0 that rows are made of; few, so that rows share beginnings."""

SETTINGS: list[tuple[str, Any]] = [
    ("tokens", 64),
    ("tokens", 150),
    ("tokens", 400),
    ("dtype", "bfloat16"),
    ("dtype", "float32"),
]


class Killed(BaseException):
    """What a test throws where a process would be killed."""


class World:
    """The accepted rows of a dataset, and where the hidden states go."""

    def __init__(self, folder: Path, seed: int) -> None:
        folder.mkdir()
        self.folder, self.rng = folder, Random(seed)
        self.settings: dict[str, Any] = {"tokens": 64, "dtype": "float32"}
        self.count = 0
        self.rows = [self.new_row() for _ in range(self.rng.randrange(3, 7))]

    def ids(self) -> list[int]:
        """Return random ids, at least one."""
        return self.rng.choices(range(VOCABULARY), k=self.rng.randrange(1, 60))

    def new_row(self) -> dict[str, Any]:
        """Return a row with an id of its own."""
        self.count += 1
        return {"id": f"r{self.count}", "prompt": self.ids(), "completion": self.ids()}

    def edit(self) -> str:
        """Change something; return what."""
        rng = self.rng
        at = rng.randrange(len(self.rows)) if self.rows else 0
        kinds = ["add", "add", "insert", "remove", "prompt", "completion", "reorder", "swap", "copy", "rename"]
        kind = rng.choice([*kinds, "setting", "setting", "nothing"])
        if kind == "add":
            self.rows += [self.new_row() for _ in range(rng.randrange(1, 4))]
        elif kind == "insert":
            self.rows.insert(at, self.new_row())
        elif kind == "reorder":
            rng.shuffle(self.rows)
        elif kind == "setting":
            self.settings.update([rng.choice(SETTINGS)])
        elif self.rows and kind != "nothing":
            other = rng.randrange(len(self.rows))
            if kind == "remove":
                del self.rows[at]
            elif kind in ("prompt", "completion"):
                self.rows[at][kind] = self.ids()
            elif kind == "swap":
                self.rows[at], self.rows[other] = self.rows[other], self.rows[at]
            elif kind == "copy":
                self.count += 1
                self.rows.insert(other, {**self.rows[at], "id": f"r{self.count}"})
            elif kind == "rename":
                self.count += 1
                self.rows[at] = {**self.rows[at], "id": f"r{self.count}"}
        return kind

    def build(self, small: Path) -> dict[str, bytes]:
        """Run the stage as it is configured now; return the bytes of everything that it writes."""
        at, settings = self.folder, self.settings
        rows = (token_row(row["id"], row["prompt"], row["completion"]) for row in self.rows)
        write_rows(at / "rows.parquet", SCHEMA, rows)
        write_json(at / "verdict.json", {})
        config = extract.Config(
            extract=extract_settings(tokens_per_batch=settings["tokens"], shard_bytes=100_000, dtype=settings["dtype"])
        )
        extract.run(
            config,
            accepted=at / "rows.parquet",
            verdict=at / "verdict.json",
            record=small / "fingerprint.json",
            model=small / "model",
            hidden=at / "hidden",
            stamp=at / "stamp.json",
        )
        written = [at / "stamp.json", *sorted((at / "hidden").iterdir())]
        return {str(path.relative_to(at)): path.read_bytes() for path in written}


def make_small_target(folder: Path, kimi: TargetRecord) -> Path:
    """A target whose forward pass takes next to nothing."""
    save_target(
        folder / "model",
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=7,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    save_record(folder / "fingerprint.json", kimi)
    return folder


_open_model, _find_source = cache(open_model), cache(find_source)


def quicken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load the weights once, since they do not change, and sync nothing to the disk."""
    monkeypatch.setattr("pipeline.stages.extract.local.open_model", _open_model)
    monkeypatch.setattr("pipeline.stages.extract.stage.find_source", _find_source)
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


@contextmanager
def killed_after(writes: int) -> Iterator[None]:
    """Stop when this many files are finished, without a chance to tidy up."""
    patch, left = pytest.MonkeyPatch(), [writes]
    rename, close = Path.replace, ReuseCache.close

    def counting(path: Path, to: Any) -> Path:
        left[0] -= 1
        if left[0] < 0:
            patch.setattr(ReuseCache, "close", lambda _self: None)
            raise Killed
        return rename(path, to)

    patch.setattr(Path, "replace", counting)
    try:
        yield
    except Killed:
        pass
    finally:
        patch.undo()
    assert ReuseCache.close is close


def spoil(store: Path, rng: Random) -> str:
    """Damage the cache in one of many ways; return how."""
    files = sorted(store.glob("??/*"))
    how: dict[str, Callable[[], object]] = {
        "flip": lambda: _flip(rng.choice(files), rng),
        "cut": lambda: _rewrite(rng.choice(files), rng.choice(files).read_bytes()[:-7]),
        "exchange": lambda: _rewrite(rng.choice(files), rng.choice(files).read_bytes()),
        "remove": lambda: rng.choice(files).unlink(),
        "move": lambda: _sql(store, "UPDATE pieces SET at = at + 1"),
        "mix": lambda: _sql(store, "UPDATE pieces SET segment = (SELECT name FROM segments ORDER BY name LIMIT 1)"),
        "garbage": lambda: (store / FILE).write_bytes(b"no database" * 500),
    }
    name = rng.choice(list(how))
    if files:
        how[name]()
    return name


def _flip(path: Path, rng: Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    _rewrite(path, data)


def _rewrite(path: Path, data: bytes | bytearray) -> None:
    path.unlink()  # it may be a link to a file of the build
    path.write_bytes(data)


def _sql(store: Path, text: str) -> None:
    db = sqlite3.connect(store / FILE)
    with db:
        db.execute(text)
    db.close()
