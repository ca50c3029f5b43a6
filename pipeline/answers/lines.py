"""A line of a file to a job: an answer to rebuild, and the prompt that it answers. Any line becomes a job."""

import base64
import json
from typing import Any, NamedTuple

import orjson

from pipeline.core.describe import found


class Job(NamedTuple):
    """One input line."""

    id: str
    body: Any = None
    messages: Any = None
    tools: Any = None
    rejects: tuple[str, ...] = ()
    """Why there is nothing to rebuild, by code."""
    flags: tuple[str, ...] = ()
    """Why the row stays out whatever its ids, by code."""
    notes: tuple[str, ...] = ()
    output_ids: Any = None
    """Ids that the line itself holds, beside or in place of a response."""


DEEPEST = 100
"""Arrays and objects that may stand in one another; real lines have some ten."""
TOO_DEEP: dict[str, tuple[str, ...]] = {
    "rejects": ("nested_too_deeply",),
    "notes": (f"nested_too_deeply: more than {DEEPEST} arrays and objects in one another",),
}
"""Of a job from a deeper line."""


def load(line: bytes) -> Any:
    """Parse JSON; lone surrogates are let in, since a body that holds one must still be read and named.

    Raises:
        ValueError: not JSON.

    """
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            return json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def nested_too_deeply(line: bytes, value: Any) -> bool:
    """Whether a parsed line is deeper than `DEEPEST`: whoever looks into such a value by recursion fails, sooner or later by where it is called from."""
    if line.count(b"[") + line.count(b"{") <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def file_job(number: int, line: bytes) -> Job:
    """Job of a line that a user brought: `{id, messages?, tools?, response}`, a bare body, or the fields of an answer."""
    fallback = f"line-{number}"
    try:
        value = load(line)
    except ValueError as error:
        return Job(fallback, rejects=("not_json",), notes=(f"not_json: {error}",))
    if not isinstance(value, dict):
        return Job(fallback, rejects=("not_a_completion",), notes=(f"not_a_completion: the line is {found(value)}",))
    name = name_of(value.get("id"), fallback)
    if nested_too_deeply(line, value):
        return Job(name, **TOO_DEEP)
    common: dict[str, Any] = {
        "id": name,
        "messages": value.get("messages"),
        "tools": value.get("tools"),
        "output_ids": value.get("output_ids"),
    }
    if "response" in value or "response_base64" in value:
        body, rejects, notes = _received(value)
        return Job(body=body, rejects=tuple(rejects), notes=tuple(notes), **common)
    if "choices" in value or "error" in value or "meta_info" in value:
        return Job(body=value, **common)
    if any(key in value for key in ("reasoning", "reasoning_content", "content", "tool_calls")):
        return Job(body=_body_of_fields(value), **common)
    if common["output_ids"] is not None:
        return Job(body=None, **common)
    return Job(rejects=("not_a_completion",), notes=(f"not_a_completion: the line is {found(value)}",), **common)


def row_job(row: Any, number: int, prompt: Any) -> Job:
    """Job of a line of responses.jsonl, with its line of prompts.jsonl, or None when no prompt has its id."""
    if not isinstance(row, dict) or not isinstance(row.get("id"), str):
        return Job(f"line-{number}", rejects=("row_malformed",))
    asked = prompt if isinstance(prompt, dict) else {}
    body, rejects, notes = _received(row)
    if prompt is None:
        rejects.insert(0, "unknown_prompt")
    if isinstance(row.get("policy"), str):
        notes.append(f"provider_not_allowed: {row['policy']}")
    return Job(
        row["id"],
        body,
        asked.get("messages"),
        asked.get("tools"),
        tuple(rejects),
        ("provider_not_allowed",) if row.get("policy") else (),
        tuple(notes),
    )


def _received(row: dict[str, Any]) -> tuple[Any, list[str], list[str]]:
    """Body of a line, why there is none or none that can be used, and notes."""
    rejects: list[str] = []
    notes: list[str] = []
    error = row.get("error")
    if isinstance(error, dict) and isinstance(error.get("kind"), str):
        rejects.append(error["kind"])
        notes.append(f"{error['kind']}: {error.get('message')}")
    body = row.get("response")
    if body is None and isinstance(row.get("response_base64"), str):
        body = _odd_body(row["response_base64"])
    if body is None and not rejects:
        rejects.append("no_response")
    return body, rejects, notes


def _odd_body(encoded: str) -> Any:
    """A body that is no strict JSON, kept as base64: read as far as it can be."""
    try:
        value = load(raw := base64.b64decode(encoded))
    except ValueError:
        return {}
    return {} if nested_too_deeply(raw, value) else value


def name_of(value: Any, fallback: str) -> str:
    """The line's id as text; the line number's name where it has none."""
    if isinstance(value, str) and value:
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else fallback


def _body_of_fields(value: dict[str, Any]) -> dict[str, Any]:
    """A completion body around the bare fields of an answer."""
    finish = value.get("finish_reason") or ("tool_calls" if value.get("tool_calls") else None)
    choice = {
        "message": value,
        "finish_reason": finish,
        "native_finish_reason": value.get("native_finish_reason"),
        "logprobs": value.get("logprobs"),
    }
    return {"provider": value.get("provider"), "usage": value.get("usage"), "choices": [choice]}
