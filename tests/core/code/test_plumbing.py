"""Plumbing: left out of the fingerprints, so its imports and the bytes that it writes are held here."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from pipeline.core.code import fingerprint
from pipeline.core.code.fingerprint import PLUMBING, PLUMBING_VERSION, fingerprints, is_plumbing
from pipeline.core.code.modules import PACKAGE, Module, modules
from pipeline.core.files.atomic import write_text
from pipeline.core.files.json_file import write_json
from pipeline.core.files.jsonl import write_jsonl
from pipeline.core.files.tables import versioned, write_batches, writing_table
from pipeline.core.reuse import code_digest
from pipeline.graph import STAGES
from tests.conftest import ROOT

MODULES = modules(ROOT)

SCHEMA = versioned(
    [pa.field("id", pa.string()), pa.field("ids", pa.list_(pa.int32())), pa.field("x", pa.float64())], "t", 1
)
ROWS = [{"id": f"r{n}", "ids": list(range(n % 7)), "x": n / 3 if n % 5 else None} for n in range(5000)]
BATCHES = pa.Table.from_pylist(ROWS, schema=SCHEMA).to_batches(max_chunksize=1500)
VALUE = {"b": [1, 1.5, None, True, "é\u2028"], "a": {"z": 1e300, "y": -0.0}}


def _table(path: Path) -> None:
    write_batches(path, SCHEMA, BATCHES)


def _growing_table(path: Path) -> None:
    with writing_table(path, SCHEMA) as table:
        for batch in BATCHES:
            table.write(batch)


def _tensors(path: Path) -> None:
    import torch

    from pipeline.core.files.tensors import save_tensors

    halves = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    save_tensors(path, {"b": halves, "a": torch.arange(5), "c": torch.ones(2, 2)}, {"z": "1", "a": "2"})


WRITERS: list[tuple[str, Callable[[Path], object], str]] = [
    ("table", _table, "c5cf17acd5aed849719e1b0ca41104e5f0d55ba8aa3ac1485a251f719ad3122a"),
    ("growing table", _growing_table, "a4d832e30d3d0fb6f821fd05546fe4c033a474841c69e3c96dd90571be1160af"),
    ("tensors", _tensors, "0264c4afdbdccb253cf827b3385fafcd1a4014569c4c6c9c3dbc7e9c8a41a356"),
    ("JSON", lambda path: write_json(path, VALUE), "dad0f53f4c49f7ea726e3eb5357fc9174c2ecdabeb528e7cde80781b952777d3"),
    (
        "JSONL",
        lambda path: write_jsonl(path, [VALUE, orjson.dumps(VALUE)]),
        "f8192c2b08f85097009cc119a6ba42ad1ee5b769807124dae4d89e063ffd4ffc",
    ),
    ("text", lambda path: write_text(path, "é\n"), "edd3a863872a04239eb29ad4bc12fc892b3d4ae57cc7e786a3697816f8e141c2"),
]
"""Name, writer, and the SHA-256 of what it writes."""


@pytest.mark.parametrize(
    ("writer", "sha256"),
    [
        pytest.param(writer, sha256, id=name, marks=[pytest.mark.slow] * (name == "tensors"))
        for name, writer, sha256 in WRITERS
    ],
)
def test_the_file_layer_writes_the_bytes_of_this_version(
    tmp_path: Path, writer: Callable[[Path], object], sha256: str
) -> None:
    writer(tmp_path / "file")
    assert hashlib.sha256((tmp_path / "file").read_bytes()).hexdigest() == sha256, (
        "other bytes than recorded: record the new digest, and unless only a pinned library changed, "
        f"raise PLUMBING_VERSION, which is {PLUMBING_VERSION}"
    )


@pytest.mark.parametrize("module", [m for m in MODULES.values() if is_plumbing(m.name)], ids=lambda m: m.name)
def test_plumbing_imports_only_plumbing(module: Module) -> None:
    """What plumbing imports is reached through it, and a change there must not pass unseen."""
    ours = {name for name in module.imports if name.split(".")[0] == PACKAGE}
    imported = {name if name in MODULES else name.rpartition(".")[0] for name in ours}
    packages = {name for name in imported if MODULES[name].is_package}
    assert {name for name in imported - packages if not is_plumbing(name)} == set()


def test_each_entry_of_the_plumbing_is_a_module_or_folder_that_exists() -> None:
    assert set(MODULES) >= PLUMBING


def test_the_version_is_part_of_every_fingerprint_and_of_the_keys_of_reuse(monkeypatch: pytest.MonkeyPatch) -> None:
    class Notes(dict[bytes, bytes]):
        def note(self, key: bytes) -> bytes | None:
            return self.get(key)

        set_note = dict.__setitem__

    def both() -> tuple[dict[str, dict[str, object]], bytes]:
        code_digest._fingerprint.cache_clear()
        return fingerprints(ROOT, [stage.name for stage in STAGES]), code_digest.code_digest("gate", Notes())

    before, key = both()
    monkeypatch.setattr(fingerprint, "PLUMBING_VERSION", PLUMBING_VERSION + 1)
    after, other_key = both()
    code_digest._fingerprint.cache_clear()
    assert [stage for stage in before if before[stage]["code"] == after[stage]["code"]] == []
    assert key != other_key
