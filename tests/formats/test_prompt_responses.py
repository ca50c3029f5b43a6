"""Prompts and responses matched by id, in whatever order the files are."""

import json
from pathlib import Path
from random import Random

import pytest

from pipeline.core.errors import InputError
from pipeline.formats.prompt_responses import LinesById, line_name, pair_by_id, required_id


def write(path: Path, ids: list[str]) -> Path:
    path.write_bytes(b"".join(line(number, name) for number, name in enumerate(ids, 1)))
    return path


def line(number: int, name: str) -> bytes:
    return json.dumps({"id": name, "n": number}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def expected_pairs(prompts: list[str], responses: list[str]) -> list[tuple[int, bytes | None, bytes | None]]:
    """The same pairs, by a search from the start for each prompt."""
    left = list(enumerate(responses, 1))
    pairs: list[tuple[int, bytes | None, bytes | None]] = []
    for number, name in enumerate(prompts, 1):
        match = next((pair for pair in left if pair[1] == name), None)
        if match is not None:
            left.remove(match)
        pairs.append((number, None if match is None else line(*match), line(number, name)))
    return pairs + [(number, line(number, name), None) for number, name in left]


@pytest.mark.parametrize("seed", range(60))
def test_every_prompt_gets_its_response_and_strangers_come_last(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    prompts = [rng.choice(["a", "b", "é", 'q"', f"r{n}", f"s{n}"]) for n in range(rng.randrange(12))]
    responses = [*prompts[: rng.randrange(13)], *rng.choices([*prompts, "stranger"], k=rng.randrange(4))]
    if seed % 3 == 0:
        rng.shuffle(responses)
    paths = write(tmp_path / "prompts.jsonl", prompts), write(tmp_path / "responses.jsonl", responses)
    matched = 0
    for _ in range(2):  # the second pass need not read the ids that matched in the first
        pairs = pair_by_id(*paths, required_id(paths[1]), matched=matched)
        got: list[tuple[int, bytes | None, bytes | None]] = []
        while True:
            try:
                pair = next(pairs)
                got.append((pair.number, pair.response, pair.prompt))
            except StopIteration as end:
                matched = end.value
                break
        assert got == expected_pairs(prompts, responses)
    same = [a == b for a, b in zip(prompts, responses, strict=False)]
    assert matched == (same.index(False) if False in same else len(same))


@pytest.mark.parametrize("seed", range(30))
def test_a_line_is_found_as_often_as_it_is_asked_for(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    ids = [f"r{n}" for n in range(8)]
    path = write(tmp_path / "in.jsonl", [*ids, "r1"])
    lines = LinesById(path, required_id(path))
    for name in [*ids[: rng.randrange(8)], *rng.choices([*ids, "none"], k=12)]:
        assert lines.find(name) == (None if name == "none" else line(ids.index(name) + 1, name))


def test_ids_that_match_in_a_first_pass_are_not_read_again(tmp_path: Path) -> None:
    ids = ["a", "b", "c"]
    paths = write(tmp_path / "prompts.jsonl", ids), write(tmp_path / "responses.jsonl", ids)
    read: list[int] = []

    def line_id(number: int, text: bytes) -> str:
        read.append(number)
        return str(json.loads(text)["id"])

    assert len(list(pair_by_id(*paths, line_id, matched=2))) == 3
    assert read == [3, 3]


def test_a_line_without_an_id_is_refused_in_a_build_and_numbered_in_a_users_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"id":"a","x":1}\n\n{"n": 2}\n{"id": 7}\n{no\n')
    for name, number, problem in (("b", 3, "needs an object with a string `id`"), ("b", 5, "not JSON")):
        with pytest.raises(InputError, match=rf"in\.jsonl:{number}: {problem}"):
            LinesById(path, required_id(path)).find(name)
        path.write_text("\n\n\n\n{no\n")
    path.write_text('{"id":"a","x":1}\n\n{"n": 2}\n{"id": 7}\n{no\n')
    lines = LinesById(path, line_name)
    assert [lines.find(name) for name in ("line-3", "7", "a", "line-5")] == [
        b'{"n": 2}\n',
        b'{"id": 7}\n',
        b'{"id":"a","x":1}\n',
        None,
    ]
