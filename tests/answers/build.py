"""Bodies and jobs for tests."""

from typing import Any

from pipeline.answers.lines import Job
from pipeline.answers.providers.habits import HabitCounts, Habits, learn
from pipeline.answers.rows import PackedRow, RowMaker

CLOSE, END, TOOLS, TOOLS_END, CALL, ARGS, CALL_END = 163607, 163586, 163595, 163596, 163597, 163598, 163599


def body(
    reasoning: str | None = None,
    content: str | None = None,
    calls: list[dict[str, Any]] | None = None,
    *,
    finish: str | None = "stop",
    billed: int | None = None,
    **choice: Any,
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, "reasoning": reasoning}
    if calls is not None:
        message["tool_calls"] = calls
    result: dict[str, Any] = {
        "provider": "P",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}],
    }
    if billed is not None:
        result["usage"] = {"prompt_tokens": 0, "completion_tokens": billed, "total_tokens": billed}
    return result


def call(name: str, arguments: Any, call_id: str | None) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def rows_of(maker: RowMaker, *bodies: Any) -> list[PackedRow]:
    """Rows of a file that holds these bodies: habits learned first, as the stage does."""
    jobs = [Job(f"r{number}", value) for number, value in enumerate(bodies)]
    seen: dict[str | None, HabitCounts] = {}
    for job in jobs:
        maker.observe(job, seen, 256)
    habits: dict[str | None, Habits] = learn(seen)
    return maker.rows(jobs, habits)


def codes(row: PackedRow) -> set[str]:
    """Every code that a row carries, as reason or as note."""
    return {*(row.reason or "").split(", "), *(note.split()[0].rstrip(":") for note in row.notes if note)} - {""}
