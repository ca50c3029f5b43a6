"""Where the lines come from: a user's file, or the two files of the build, matched prompt by prompt."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.answers.lines import TOO_DEEP, Job, file_job, load, row_job
from pipeline.core.files import read_lines
from pipeline.core.tables import opener_of
from pipeline.formats.completion.nesting import nested_too_deeply
from pipeline.stages.reconstruct.kept import Line


def file_lines(path: Path) -> Iterator[Line]:
    """Lines of a user's file, which may be packed (`.gz`, `.zst`)."""
    return ((number, line, None) for number, line in read_lines(path, opener_of(path)))


def file_to_job(line: Line) -> Job:
    """Job of a line of a user's file."""
    number, text, _ = line
    assert text is not None
    return file_job(number, text)


class BuildLines:
    """One line a prompt, in prompt order, then the responses that answer none; from the start, as often as asked.

    The files normally run in step and are read so; from the first pair that does not match, the rest is matched by id, in memory.
    """

    def __init__(self, prompts: Path, responses: Path) -> None:
        self._prompts, self._responses = prompts, responses
        self._in_step = 0
        """Pairs that are known to match since an earlier pass."""

    def __call__(self) -> Iterator[Line]:
        """Begin anew."""
        asked, answered = read_lines(self._prompts), read_lines(self._responses)
        for place, (number, prompt) in enumerate(asked, 1):
            pair = next(answered, None)
            if pair is None or (place > self._in_step and _id(pair[1]) != _id(prompt)):
                rest = [(number, prompt), *asked]
                yield from _matched(rest, [*([pair] if pair is not None else []), *answered])
                return
            self._in_step = max(self._in_step, place)
            yield number, pair[1], prompt
        yield from ((found, line, None) for found, line in answered)


def build_to_job(line: Line) -> Job:
    """Job of a prompt and its response."""
    number, text, prompt_text = line
    prompt = _value(prompt_text)
    if text is None:
        name = prompt.get("id") if isinstance(prompt, dict) else None
        row: Any = {"id": name if isinstance(name, str) else f"line-{number}"}
    else:
        row = _value(text)
        if row is None:
            return Job(f"line-{number}", rejects=("not_json",))
    job = row_job(row, number, prompt)
    deep = any(
        line is not None and nested_too_deeply(line, value) for line, value in ((text, row), (prompt_text, prompt))
    )
    return Job(job.id, **TOO_DEEP) if deep else job


def _matched(prompts: list[tuple[int, bytes]], responses: list[tuple[int, bytes]]) -> Iterator[Line]:
    left: dict[Any, list[tuple[int, bytes]]] = {}
    for number, line in responses:
        left.setdefault(_id(line), []).append((number, line))
    for number, prompt in prompts:
        found = left.get(_id(prompt))
        yield number, found.pop(0)[1] if found else None, prompt
    for number, line in sorted(pair for pairs in left.values() for pair in pairs):
        yield number, line, None


def _value(line: bytes | None) -> Any:
    if line is None:
        return None
    try:
        return load(line)
    except ValueError:
        return None


def _id(line: bytes) -> Any:
    value = _value(line)
    name = value.get("id") if isinstance(value, dict) else None
    return name if isinstance(name, str) else None
