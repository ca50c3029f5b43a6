"""A small dataset that changes by random edits, and the three stages that reuse rows, run on it in one process."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pipeline.core.errors import InputError
from pipeline.core.files import write_json
from pipeline.core.reuse.index import FILE
from pipeline.core.reuse.row_cache import Kept
from pipeline.core.tables import write_rows
from pipeline.formats.schema.target import TargetRecord
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.model.tokenizer.tokenizer import Tokenizer
from pipeline.model.weights.source import find_source
from pipeline.model.weights.target import open_model
from pipeline.stages.audit import stage as audit
from pipeline.stages.audit.config import AuditSection, ExpectSection, GateSection
from pipeline.stages.audit.inputs.context import make_context
from pipeline.stages.extract import stage as extract
from pipeline.stages.reconstruct import stage as reconstruct
from tests.answers.build import body, call
from tests.stages.audit.test_stage import WRITES
from tests.tiny import extract_settings, save_record, save_target, token_row

WORDS = [
    "two",
    "plus",
    "three",
    "is",
    "five",
    "because",
    "the",
    "sum",
    "of",
    "small",
    "numbers",
    "stays",
    "small",
    "and",
    "<|im_end|>",
    "is",
    "text",
    "here,",
    "naïve",
    "東京",
    "\n-",
    "a",
    "list",
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "d",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        },
    }
]


class Killed(BaseException):
    """What a test throws where a process would be killed."""


class World:
    """The dataset as its author has it, and where its files go."""

    def __init__(self, folder: Path, seed: int, record: TargetRecord) -> None:
        folder.mkdir()
        self.folder, self.rng, self.record = folder, Random(seed), record
        self.settings: dict[str, Any] = {
            "send_tools": True,
            "max_rate": 0.05,
            "reasoning": "required",
            "allow": [],
            "admit": [],
            "tokens": 64,
            "dtype": "float32",
        }
        self.count = 0
        self.rows = [self.new_row() for _ in range(self.rng.randrange(3, 7))]

    def text(self, most: int = 12) -> str:
        """Some words, sometimes with white space at the end, sometimes none."""
        words = self.rng.choices(WORDS, k=self.rng.randrange(most))
        return " ".join(words) + self.rng.choice(["", "", "", "\n", " "])

    def new_row(self) -> dict[str, Any]:
        """A prompt and its answer."""
        self.count += 1
        return {
            "id": f"r{self.count}",
            "question": self.text(),
            "tools": self.rng.random() < 0.2,
            "answer": self.new_answer(),
        }

    def new_answer(self) -> Any:
        """What a server might say, not all of it good."""
        rng = self.rng
        if rng.random() < 0.04:
            return rng.choice(["{not json", None, None, None])
        calls = [call("f", json.dumps({"q": self.text(3)}), None)] if rng.random() < 0.2 else None
        value = body(
            self.text(),
            self.text(),
            calls,
            billed=rng.choice([None, rng.randrange(4, 40)]),
            finish=rng.choice(["stop", "stop", "length"]),
        )
        value["provider"] = rng.choice(["P", "Q", "Q", None])
        if rng.random() < 0.1:
            value["choices"].append({**value["choices"][0], "index": 1})
        return {
            "provider": value["provider"],
            "response": value,
            "latency_ms": rng.random() * 100,
            "cost_usd": rng.random(),
            "model": "m",
        }

    def write(self) -> None:
        """Write prompts.jsonl, responses.jsonl and the rows that extract reads."""
        prompts, responses = [], []
        for row in self.rows:
            prompts.append(
                json.dumps(
                    {
                        "id": row["id"],
                        "messages": [{"role": "user", "content": row["question"]}],
                        "tools": TOOLS if row["tools"] else None,
                    }
                )
            )
            answer = row["answer"]
            if answer is not None:
                responses.append(
                    answer if isinstance(answer, str) else json.dumps({"id": row["id"], "key": "k", **answer})
                )
        (self.folder / "prompts.jsonl").write_text("".join(line + "\n" for line in prompts))
        (self.folder / "responses.jsonl").write_text("".join(line + "\n" for line in responses))
        write_json(self.folder / "fingerprint.json", self.record)
        write_json(
            self.folder / "generate.json",
            {"endpoints": [{"provider": "P", "tag": "p", "prompt": 1.0, "completion": 2.0}]},
        )
        (self.folder / "timings.jsonl").write_text("")
        write_rows(self.folder / "rows.parquet", SCHEMA, (token_row(row["id"], *self.ids(row)) for row in self.rows))

    def ids(self, row: dict[str, Any]) -> tuple[list[int], list[int]]:
        """A small target's ids of a row: the bytes of its text."""
        return list(row["question"].encode()) or [0], list(json.dumps(row["answer"]).encode()[40:90]) or [0]

    def edit(self) -> str:
        """Change something; return what."""
        rng = self.rng
        at = rng.randrange(len(self.rows)) if self.rows else 0
        kind = rng.choice(
            [
                "add",
                "add",
                "insert",
                "remove",
                "prompt",
                "answer",
                "reorder",
                "swap",
                "copy",
                "rename",
                "setting",
                "setting",
                "record",
                "nothing",
            ]
        )
        if kind == "add":
            self.rows += [self.new_row() for _ in range(rng.randrange(1, 4))]
        elif kind == "insert":
            self.rows.insert(at, self.new_row())
        elif kind == "reorder":
            rng.shuffle(self.rows)
        elif kind == "record":
            self.record = self.record.model_copy(update={"name": f"target {rng.randrange(3)}"})
        elif kind == "setting":
            self.settings.update([rng.choice(SETTINGS)])
        elif self.rows and kind != "nothing":
            other = rng.randrange(len(self.rows))
            if kind == "remove":
                del self.rows[at]
            elif kind == "prompt":
                self.rows[at]["question"] = self.text()
            elif kind == "answer":
                self.rows[at]["answer"] = self.new_answer()
            elif kind == "swap":
                self.rows[at], self.rows[other] = self.rows[other], self.rows[at]
            elif kind == "copy":
                self.count += 1
                self.rows.insert(other, {**self.rows[at], "id": f"r{self.count}"})
            elif kind == "rename":
                self.count += 1
                self.rows[at]["id"] = f"r{self.count}"
        return kind

    def build(self, small: Path) -> dict[str, bytes]:
        """Run the three stages as they are configured now; return the bytes of everything that they write."""
        self.write()
        at, said = self.folder, self.settings
        files = {name: at / f"{name}.jsonl" for name in ("prompts", "responses")}
        record = at / "fingerprint.json"
        reconstruct.run(
            reconstruct.Config(send_tools=said["send_tools"]),
            **files,
            record=record,
            tokens=at / "tokens.parquet",
            summary=at / "reconstruct.json",
        )
        section = AuditSection(
            gate=GateSection(admit=said["admit"]),
            round_trip=AuditSection().round_trip.model_copy(update={"max_rate": said["max_rate"]}),
        )
        settings = audit.Config(
            audit=section,
            own={},
            expect=ExpectSection(reasoning=said["reasoning"]),
            allow=said["allow"],
            deny=[],
            heldout="none",
            heldout_digest=None,
        )
        writes = {name: at / path for name, path in WRITES.items()}
        try:
            audit.run(
                settings,
                **files,
                generated=at / "generate.json",
                timings=at / "timings.jsonl",
                tokens=at / "tokens.parquet",
                record=record,
                **writes,
            )
        except InputError:  # a line that is no JSON: the audit stops there, with what is kept and without
            writes = {}
        states = extract.Config(
            extract=extract_settings(tokens_per_batch=said["tokens"], shard_bytes=100_000, dtype=said["dtype"])
        )
        paths = {
            "accepted": at / "rows.parquet",
            "verdict": at / "reconstruct.json",
            "record": small / "fingerprint.json",
            "model": small / "model",
        }
        extract.run(states, **paths, hidden=at / "hidden", stamp=at / "stamp.json")
        whole = [
            at / "tokens.parquet",
            at / "reconstruct.json",
            at / "stamp.json",
            *writes.values(),
            *sorted((at / "hidden").iterdir()),
        ]
        return {str(path.relative_to(at)): path.read_bytes() for path in whole}


SETTINGS: list[tuple[str, Any]] = [
    ("send_tools", True), ("send_tools", False), ("max_rate", 0.0), ("max_rate", 0.05), ("reasoning", "optional"), ("reasoning", "required"), ("allow", ["P"]),
    ("allow", []), ("admit", ["count_mismatch", "count_missing"]), ("admit", []), ("tokens", 150), ("tokens", 400), ("dtype", "bfloat16"), ("dtype", "float32"),
]  # fmt: skip


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


@cache
def _tables(tokenizer: Tokenizer, record: str) -> Any:
    return make_context(TargetRecord.model_validate_json(record), tokenizer)


def quicken(monkeypatch: pytest.MonkeyPatch, tokenizer: Tokenizer) -> None:
    """Load once what does not change: the vocabulary, its tables, the weights; and sync nothing to the disk."""

    def context(
        record: TargetRecord, _tokenizer: Tokenizer, expect: Any, allow: Any, deny: Any, heldout: Any, endpoints: Any
    ) -> Any:
        whole = _tables(tokenizer, record.model_copy(update={"name": "any"}).model_dump_json())
        return replace(
            whole,
            record=record,
            expect=expect,
            allow=tuple(allow),
            deny=tuple(deny),
            heldout=heldout,
            endpoints=endpoints,
        )

    for stage in (reconstruct, audit):
        monkeypatch.setattr(stage, "open_tokenizer", lambda _record: tokenizer)
    monkeypatch.setattr(audit, "make_context", context)
    monkeypatch.setattr("pipeline.stages.extract.local.open_model", _open_model)
    monkeypatch.setattr("pipeline.stages.extract.stage.find_source", _find_source)
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


@contextmanager
def killed_after(writes: int) -> Iterator[None]:
    """Stop at the so-manieth file that is finished, without a chance to tidy up."""
    patch, left = pytest.MonkeyPatch(), [writes]
    rename, close = Path.replace, Kept.close

    def counting(path: Path, to: Any) -> Path:
        left[0] -= 1
        if left[0] < 0:
            patch.setattr(Kept, "close", lambda _self: None)
            raise Killed
        return rename(path, to)

    patch.setattr(Path, "replace", counting)
    try:
        yield
    except Killed:
        pass
    finally:
        patch.undo()
    assert Kept.close is close


def spoil(store: Path, rng: Random) -> str:
    """Damage what is kept, in one of many ways; return how."""
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
