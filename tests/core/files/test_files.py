"""Files appear whole or not at all: after an error, a kill, or a full disk."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ArtifactError, DiskError, InputError
from pipeline.core.files.atomic import writing, writing_folder
from pipeline.core.files.digests import sha256_folder
from pipeline.core.files.json_file import read_json, read_model, to_json, write_json
from pipeline.core.files.jsonl import read_jsonl, write_jsonl
from pipeline.core.files.scratch import scratch_folder
from pipeline.core.files.tables import read_rows, versioned
from pipeline.formats.schema.responses import Failure
from tests.conftest import ROOT
from tests.linux_namespaces import mounting_command
from tests.parquet import write_rows

TABLE = versioned([pa.field("id", pa.string()), pa.field("n", pa.int32())], "numbers", 1)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@settings(deadline=None, max_examples=50)
@given(old=st.binary(max_size=64), new=st.lists(st.binary(max_size=64), max_size=5), fails_at=st.integers(0, 5))
def test_a_reader_sees_the_old_bytes_or_the_new_ones(
    tmp_path_factory: pytest.TempPathFactory, old: bytes, new: list[bytes], fails_at: int
) -> None:
    path = tmp_path_factory.mktemp("atomic") / "file"
    path.write_bytes(old)
    try:
        with writing(path) as file:
            for number, chunk in enumerate(new):
                if number == fails_at:
                    raise RuntimeError("a stage went wrong")
                file.write(chunk)
                file.flush()
                assert path.read_bytes() == old
    except RuntimeError:
        assert path.read_bytes() == old
    else:
        assert path.read_bytes() == b"".join(new)
    assert leftovers(path.parent) == ["file"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    with writing_folder(tmp_path / "d") as folder:
        (folder / "a").write_text("1")
    with pytest.raises(RuntimeError), writing_folder(tmp_path / "d") as folder:
        (folder / "b").write_text("2")
        raise RuntimeError("a stage went wrong")
    assert leftovers(tmp_path) == ["a"]
    with writing_folder(tmp_path / "d") as folder:
        (folder / "c").write_text("3")
    assert leftovers(tmp_path) == ["c"]


@pytest.mark.slow
def test_a_killed_process_leaves_no_file_that_looks_whole(tmp_path: Path) -> None:
    script = f"""
        import os, pathlib
        from pipeline.core.files.atomic import writing
        with writing(pathlib.Path({str(tmp_path / "file")!r})) as file:
            file.write(b"half")
            file.flush()
            print("now", flush=True)
            os.read(0, 1)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"now\n"
    process.kill()
    assert process.wait() == -signal.SIGKILL
    process.stdin.close()
    process.stdout.close()
    assert not (tmp_path / "file").exists()


@pytest.mark.slow
@pytest.mark.skipif(mounting_command("") is None, reason="this machine allows no mount, so no small disk can be made")
def test_a_full_disk_is_one_clear_message_and_no_half_file(tmp_path: Path) -> None:
    script = """
        import os, pathlib, sys
        import pyarrow as pa
        from pipeline.core.files.atomic import write_bytes, writing_folder
        from pipeline.core.files.jsonl import write_jsonl
        from pipeline.core.errors import AerieError
        from pipeline.core.files.tables import write_batches
        disk = pathlib.Path(sys.argv[1])
        try:
            write_jsonl(disk / "rows.jsonl", ({"text": "x" * 1000} for _ in range(1000)))
        except AerieError as error:
            print(type(error).__name__, error)
        try:
            with writing_folder(disk / "folder") as folder:
                (folder / "big").write_bytes(b"x" * 1_000_000)
        except AerieError as error:
            print(type(error).__name__, error)
        try:
            with writing_folder(disk / "folder") as folder:
                write_bytes(folder / "big", b"x" * 1_000_000)
        except AerieError as error:
            print(type(error).__name__, error)
        batch = pa.RecordBatch.from_pydict({"noise": [os.urandom(100_000)]})
        try:
            write_batches(disk / "rows.parquet", batch.schema, [batch] * 3)
        except AerieError as error:
            print(type(error).__name__, error)
        print("left", os.listdir(disk))
    """
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    (tmp_path / "disk").mkdir()
    command = (
        f"mount -t tmpfs -o size=64k tmpfs {tmp_path}/disk && cd {ROOT} && "
        f"PYTHONPATH={ROOT} {sys.executable} {tmp_path}/script.py {tmp_path}/disk"
    )
    done = subprocess.run(mounting_command(command) or (), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, folder, within, batches, left = done.stdout.splitlines()
    assert rows == (
        f"DiskError {tmp_path}/disk/rows.jsonl: the disk is full (0 bytes are left in {tmp_path}/disk); "
        "nothing was written there: free some space and run again"
    )
    assert within.startswith(
        f"DiskError {tmp_path}/disk/folder/big: the disk is full (0 bytes are left in {tmp_path}/disk/folder)"
    )
    assert folder.startswith(f"DiskError {tmp_path}/disk/folder: the disk is full")
    assert batches.startswith(f"DiskError {tmp_path}/disk/rows.parquet: the disk is full")
    assert left == "left []"


def test_temporary_files_without_a_place_are_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        pytest.raises(DiskError, match="x: the disk is full; free some space, or set TMPDIR"),
        scratch_folder() as folder,
    ):
        raise DiskError(f"{folder}/x: the disk is full; free some space")
    with pytest.raises(DiskError, match=r"^out: the disk is full$"), scratch_folder():
        raise DiskError("out: the disk is full")
    assert leftovers(tmp_path) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with (
        pytest.raises(DiskError, match=r"cannot make a folder for temporary files: No such file.*set TMPDIR"),
        scratch_folder(),
    ):
        pass


def test_a_device_or_a_pipe_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    """As root `--out /dev/stdout` would leave the machine without it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DiskError, match="pipe: is not a regular file; choose another path"), writing(tmp_path / "pipe"):
        pass
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_line_is_split_at_newlines_only(tmp_path: Path) -> None:
    text = {"a": "one\u2028two\x85three\x0bfour\x1e"}
    assert write_jsonl(tmp_path / "x.jsonl", [text, {"b": 1}]) == 2
    assert list(read_jsonl(tmp_path / "x.jsonl")) == [(1, text), (2, {"b": 1})]


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n\n{"a": \n')
    with pytest.raises(InputError, match=r"x\.jsonl:3: not JSON"):
        list(read_jsonl(tmp_path / "x.jsonl"))


def test_a_missing_artifact_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"none\.json: No such file or directory; run `dvc repro`"):
        read_json(tmp_path / "none.json")


def test_a_document_of_another_shape_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"kind": "http_400", "message": "no", "more": 1})
    with pytest.raises(ArtifactError, match=r"x\.json: more: .*another version"):
        read_model(tmp_path / "x.json", Failure)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_equal_values_give_equal_bytes_whatever_the_order_of_keys(value: object) -> None:
    data = to_json(value)
    assert to_json(orjson.loads(data)) == data
    if isinstance(value, dict):
        assert to_json(dict(reversed(value.items()))) == data


def test_rows_come_back_and_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    rows = [{"id": f"r{n}", "n": n} for n in range(5000)]
    assert write_rows(tmp_path / "a.parquet", TABLE, rows) == 5000
    assert write_rows(tmp_path / "b.parquet", TABLE, iter(rows)) == 5000
    assert list(read_rows(tmp_path / "a.parquet", TABLE)) == rows
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_an_empty_table_is_a_table(tmp_path: Path) -> None:
    assert write_rows(tmp_path / "a.parquet", TABLE, []) == 0
    assert list(read_rows(tmp_path / "a.parquet", TABLE)) == []


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (versioned([pa.field("id", pa.string())], "numbers", 1), r"lacks the columns \['n'\]; it has \['id'\]"),
        (
            versioned([pa.field("id", pa.string()), pa.field("n", pa.string())], "numbers", 1),
            "n is string, needed int32",
        ),
    ],
)
def test_a_table_that_does_not_fit_says_what_it_has_and_what_is_needed(
    tmp_path: Path, other: pa.Schema, says: str
) -> None:
    write_rows(tmp_path / "a.parquet", other, [])
    with pytest.raises(InputError, match=says):
        list(read_rows(tmp_path / "a.parquet", TABLE))


def test_a_table_of_another_version_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", versioned(list(TABLE), "numbers", 2), [])
    with pytest.raises(ArtifactError, match="schema numbers/2, this code reads numbers/1: run `dvc repro`"):
        list(read_rows(tmp_path / "a.parquet", TABLE))


def test_a_table_cut_short_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", TABLE, [{"id": "x", "n": 1}])
    data = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(data[:-10])
    with pytest.raises(InputError, match=r"a\.parquet: not a whole Parquet file"):
        list(read_rows(tmp_path / "a.parquet", TABLE))


def test_a_folder_digest_sees_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").write_text("1")
    first = sha256_folder(tmp_path / "d")
    os.rename(tmp_path / "d/a", tmp_path / "d/b")
    second = sha256_folder(tmp_path / "d")
    (tmp_path / "d/b").write_text("2")
    assert len({first, second, sha256_folder(tmp_path / "d")}) == 3
