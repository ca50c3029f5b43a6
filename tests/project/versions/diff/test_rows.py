"""Row changes by digests, against a comparison of whole rows by brute force."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.core.errors import InputError
from pipeline.formats.schema.tokens import SCHEMA
from pipeline.project.versions.diff import row_diff
from tests.parquet import write_rows

pytestmark = pytest.mark.slow

ids = st.lists(st.integers(0, 3), max_size=4)
contents = st.fixed_dictionaries(
    {
        "prompt_ids": ids,
        "completion_ids": ids,
        "evidence": st.sampled_from([None, "ids", "text"]),
        "count_delta": st.sampled_from([None, 0, -1]),
        "billed_tokens": st.sampled_from([None, 0, 7]),
        "finish_reason": st.sampled_from([None, "stop"]),
        "provider": st.sampled_from([None, "north", ""]),
        "segments": st.lists(
            st.fixed_dictionaries(
                {"kind": st.sampled_from(["content", "end"]), "start": st.integers(0, 2), "end": st.integers(0, 2)}
            ),
            max_size=2,
        ),
        "notes": st.lists(st.sampled_from(["a", "b"]), max_size=2),
        "status": st.sampled_from(["accept", "flag"]),
        "reason": st.sampled_from([None, "x"]),
    }
)
versions = st.dictionaries(st.sampled_from([f"row-{n}" for n in range(6)]), contents, max_size=6)


def write(path: Path, version: dict[str, dict[str, Any]]) -> Path:
    write_rows(path, SCHEMA, ({"id": identity, **content} for identity, content in version.items()))
    return path


def parts(content: dict[str, Any]) -> dict[str, Any]:
    record = {name: value for name, value in content.items() if name not in ("prompt_ids", "completion_ids")}
    return {"prompt": content["prompt_ids"], "completion": content["completion_ids"], "record": record}


@settings(deadline=None, max_examples=150)
@given(versions, versions)
def test_the_changes_are_those_that_brute_force_finds(
    tmp_path_factory: pytest.TempPathFactory, old: dict[str, Any], new: dict[str, Any]
) -> None:
    folder = tmp_path_factory.mktemp("versions")
    found = row_diff.compare(write(folder / "old", old), write(folder / "new", new))
    both = [identity for identity in new if identity in old]
    changed = {
        i: [name for name in ("prompt", "completion", "record") if parts(old[i])[name] != parts(new[i])[name]]
        for i in both
        if old[i] != new[i]
    }
    assert found.changed == changed
    assert found.unchanged == sum(old[i] == new[i] for i in both)
    came, went = [i for i in new if i not in old], [i for i in old if i not in new]
    assert {*found.added, *(pair[1] for pair in found.renamed)} == set(came)
    assert {*found.removed, *(pair[0] for pair in found.renamed)} == set(went)
    assert all(old[a] == new[b] for a, b in found.renamed)
    moved = Counter(repr(old[i]) for i in went) & Counter(repr(new[i]) for i in came)
    assert len(found.renamed) == moved.total(), "every row that only changed its id is found"
    for totals, version in ((found.old, old), (found.new, new)):
        assert totals.rows == len(version)
        assert totals.completion_tokens == sum(len(row["completion_ids"]) for row in version.values())
        assert totals.prompt_tokens == sum(len(row["prompt_ids"]) for row in version.values())
        assert totals.billed_tokens == sum(row["billed_tokens"] or 0 for row in version.values())
        assert totals.counts["evidence"] == Counter(row["evidence"] or "none" for row in version.values())


@settings(deadline=None, max_examples=50)
@given(versions)
def test_equal_files_and_missing_sides(tmp_path_factory: pytest.TempPathFactory, version: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("versions")
    path = write(folder / "one", version)
    assert row_diff.unchanged(path) == row_diff.compare(path, path)
    assert row_diff.compare(None, path).added == list(version)
    assert row_diff.compare(path, None).removed == list(version)


def test_two_rows_with_one_id_are_refused(tmp_path: Path) -> None:
    row = {
        "id": "a",
        **dict.fromkeys(SCHEMA.names[3:]),
        "prompt_ids": [1],
        "completion_ids": [2],
        "segments": [],
        "notes": [],
        "status": "accept",
    } | {"id": "a"}
    write_rows(tmp_path / "t", SCHEMA, [row, row])
    with pytest.raises(InputError, match="two rows have the id 'a'"):
        row_diff.read_digests(tmp_path / "t", row_diff.ColumnTotals())


def test_moving_a_token_between_prompt_and_completion_is_a_change(tmp_path: Path) -> None:
    base: dict[str, Any] = {
        "evidence": None,
        "count_delta": None,
        "billed_tokens": None,
        "finish_reason": None,
        "provider": None,
        "segments": [],
        "notes": [],
        "status": "accept",
        "reason": None,
    }
    old = write(tmp_path / "old", {"a": {**base, "prompt_ids": [1, 2], "completion_ids": [3]}})
    new = write(tmp_path / "new", {"a": {**base, "prompt_ids": [1], "completion_ids": [2, 3]}})
    assert row_diff.compare(old, new).changed == {"a": ["prompt", "completion"]}
