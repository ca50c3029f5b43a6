"""dvc.lock as it is read here: DVC's own digests, and every way in which the file can be broken."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError
from pipeline.project.versions.lockfile import file_digest, folder_digest, parse_lock, read_lock
from tests.instant_stages import InstantBuild

GOOD = b"""schema: '2.0'
stages:
  audit@code:
    cmd: python -m pipeline audit code
    deps:
    - path: build/code/tokens.parquet
      hash: md5
      md5: aa
      size: 1
    params:
      build/config.json:
        datasets.code.expect:
          reasoning: required
    outs:
    - path: build/code/audit/summary.json
      hash: md5
      md5: bb
      size: 2
"""


def test_an_entry_has_command_files_and_params() -> None:
    entry = parse_lock(GOOD, "dvc.lock")["audit@code"]
    assert entry.cmd == "python -m pipeline audit code"
    assert entry.deps == {"build/code/tokens.parquet": "aa"}
    assert entry.outs == {"build/code/audit/summary.json": "bb"}
    assert entry.params == {"build/config.json": {"datasets.code.expect": {"reasoning": "required"}}}


def test_an_empty_lock_has_no_entries_and_a_missing_one_is_none(tmp_path: Path) -> None:
    assert parse_lock(b"", "dvc.lock") == {}
    assert read_lock(tmp_path / "dvc.lock") is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"<<<<<<< HEAD\n" + GOOD + b"=======\n>>>>>>> other\n", "conflict markers"),
        (b"schema: '2.0'\nstages: [", "not YAML"),
        (b"schema: '3.0'\nstages: {}\n", "expected DVC's schema"),
        (b"- 1\n", "expected DVC's schema"),
        (b"schema: '2.0'\nstages: [a]\n", "expected DVC's schema"),
        (GOOD.replace(b"    cmd: python -m pipeline audit code\n", b""), "the entry of stage 'audit@code'"),
        (GOOD.replace(b"md5: aa", b"md6: aa"), "the entry of stage 'audit@code'"),
        (GOOD.replace(b"md5: bb", b"md5: [1]"), "the entry of stage 'audit@code'"),
        (GOOD.replace(b"audit@code:", b"7:"), "the entry of stage 7"),
    ],
)
def test_a_broken_lock_is_refused_with_what_to_do(content: bytes, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_lock(content, "here/dvc.lock")
    assert says in str(caught.value)
    assert str(caught.value).startswith("here/dvc.lock:")


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_give_entries_or_one_message(content: bytes) -> None:
    try:
        parse_lock(content, "dvc.lock")
    except ConfigError as error:
        assert "dvc.lock" in str(error)  # noqa: PT017


@pytest.mark.slow
def test_the_digests_are_those_that_dvc_takes(instant_build: InstantBuild) -> None:
    lock = read_lock(instant_build.root / "dvc.lock")
    assert lock is not None
    stamps = {path.name: file_digest(path.read_bytes()) for path in (instant_build.root / "build/extracted").iterdir()}
    assert folder_digest(stamps) == lock["train"].deps["build/extracted"]
    assert lock["compose"].outs["build/code.json"] == file_digest((instant_build.root / "build/code.json").read_bytes())


def test_a_folder_digest_is_dvcs_own_for_nested_folders(tmp_path: Path) -> None:
    """Asked of the library that DVC itself uses."""
    names = ["b.json", "a/z.json", "a-b/c.json", "a.json", "é/x.json"]
    for name in names:
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_text(name)
    script = (
        "import sys, json\n"
        "from dvc_data.hashfile.hash_info import HashInfo\n"
        "from dvc_data.hashfile.meta import Meta\n"
        "from dvc_data.hashfile.tree import Tree\n"
        "tree = Tree()\n"
        "for name, md5 in json.loads(sys.argv[1]).items():\n"
        "    tree.add(tuple(name.split('/')), Meta(), HashInfo('md5', md5))\n"
        "tree.digest(); print(tree.hash_info.value)"
    )
    files = {name: file_digest((tmp_path / "folder" / name).read_bytes()) for name in names}
    done = subprocess.run([sys.executable, "-c", script, json.dumps(files)], capture_output=True, text=True, check=True)
    assert folder_digest(files) == done.stdout.strip()
