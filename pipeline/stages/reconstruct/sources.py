"""Input lines and their jobs: from a user's file, or from the prompts and responses of a build."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.answers.lines import TOO_DEEP, Job, file_job, load, row_job
from pipeline.answers.readings.endings import NO_BOUNDS, Bounds
from pipeline.core.files.compression import opener_of
from pipeline.core.files.jsonl import read_lines
from pipeline.formats.completion.nesting import nested_too_deeply
from pipeline.formats.prompt_responses import PromptResponse, pair_by_id


def file_lines(path: Path) -> Iterator[PromptResponse]:
    """Lines of a user's file, which may be packed (`.gz`, `.zst`); it has no prompts beside it."""
    return (PromptResponse(number, line, None) for number, line in read_lines(path, opener_of(path)))


def file_to_job(line: PromptResponse) -> Job:
    """Return the job of a line of a user's file."""
    assert line.response is not None
    return file_job(line.number, line.response)


class BuildLines:
    """The lines of a dataset: one pair for each prompt, in order, then the responses without a prompt.

    They can be read several times.
    """

    def __init__(self, prompts: Path, responses: Path) -> None:
        self._prompts, self._responses = prompts, responses
        self._matched = 0
        """Leading lines that an earlier pass found in the same order in both files."""

    def __call__(self) -> Iterator[PromptResponse]:
        """Read the files from the start.

        Raises:
            InputError: a file is missing or cannot be read.

        """
        self._matched = yield from pair_by_id(self._prompts, self._responses, _line_id, matched=self._matched)


def build_to_job(line: PromptResponse, bounds: Bounds = NO_BOUNDS) -> Job:
    """Return the job of a prompt and its response; `bounds` are those of every request."""
    prompt = _parsed(line.prompt)
    if line.response is None:
        prompt_id = prompt.get("id") if isinstance(prompt, dict) else None
        response: Any = {"id": prompt_id if isinstance(prompt_id, str) else f"line-{line.number}"}
    else:
        response = _parsed(line.response)
        if response is None:
            return Job(f"line-{line.number}", rejects=("not_json",))
    job = row_job(response, line.number, prompt, bounds)
    too_deep = any(
        text is not None and nested_too_deeply(text, value)
        for text, value in ((line.response, response), (line.prompt, prompt))
    )
    return Job(job.id, **TOO_DEEP) if too_deep else job


def _parsed(line: bytes | None) -> Any:
    """Return the value of a line, or None when there is no line or it is not JSON."""
    if line is None:
        return None
    try:
        return load(line)
    except ValueError:
        return None


def _line_id(_number: int, line: bytes) -> str | None:
    value = _parsed(line)
    line_id = value.get("id") if isinstance(value, dict) else None
    return line_id if isinstance(line_id, str) else None
