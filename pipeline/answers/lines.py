"""Lines of files as jobs: an answer to rebuild, and the prompt that it answers. Any line becomes a job."""

import base64
import json
from typing import Any, NamedTuple

import orjson

from pipeline.answers.readings.endings import NO_BOUNDS, STOP_FIELDS, Bounds
from pipeline.core.describe import describe
from pipeline.formats.completion.envelope import name_in, open_envelope
from pipeline.formats.completion.nesting import DEEPEST, nested_too_deeply
from pipeline.formats.completion.values import count, mapping


class Job(NamedTuple):
    """One input line."""

    id: str
    body: Any = None
    messages: Any = None
    tools: Any = None
    rejects: tuple[str, ...] = ()
    """Codes of why there is nothing to rebuild."""
    flags: tuple[str, ...] = ()
    """Codes of why the row stays out of training, whatever its ids."""
    notes: tuple[str, ...] = ()
    output_ids: Any = None
    """Ids that the line itself holds, beside a response or without one."""
    bounds: Bounds = NO_BOUNDS
    """The things in the request that end an answer before its end token."""


TOO_DEEP: dict[str, Any] = {
    "rejects": ("nested_too_deeply",),
    "notes": (f"nested_too_deeply: more than {DEEPEST} arrays and objects in one another",),
}
"""Fields of the job of a line that is nested too deeply."""


def load(line: bytes) -> Any:
    """Parse JSON. Lone surrogates are let in: a body that holds one must still be read and named.

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


def file_job(number: int, line: bytes) -> Job:
    """Return the job of a line of a user's file.

    The line is `{id, messages?, tools?, response}`, a batch output line, a bare body, or the fields of an answer.
    """
    fallback = f"line-{number}"
    try:
        value = load(line)
    except ValueError as error:
        return Job(fallback, rejects=("not_json",), notes=(f"not_json: {error}",))
    if not isinstance(value, dict):
        return Job(fallback, rejects=("not_a_completion",), notes=(f"not_a_completion: the line is {describe(value)}",))
    name = name_of(name_in(value), fallback)
    if nested_too_deeply(line, value):
        return Job(name, **TOO_DEEP)
    common: dict[str, Any] = {
        "id": name,
        "messages": value.get("messages"),
        "tools": value.get("tools"),
        "output_ids": value.get("output_ids"),
        "bounds": _bounds(value),
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
    return Job(rejects=("not_a_completion",), notes=(f"not_a_completion: the line is {describe(value)}",), **common)


def _bounds(line: dict[str, Any]) -> Bounds:
    """Return the bounds of the request of a line, the smallest limit where several are named."""
    request = mapping(line.get("request"))
    places = (line, request, mapping(request.get("body")))
    named = [count(fields.get(name)) for fields in places for name in ("max_tokens", "max_completion_tokens")]
    return Bounds(
        min((limit for limit in named if limit), default=None),
        any(fields.get(name) for fields in places for name in STOP_FIELDS),
    )


def row_job(row: Any, number: int, prompt: Any, bounds: Bounds = NO_BOUNDS) -> Job:
    """Return the job of a line of responses.jsonl with its line of prompts.jsonl, or None if no prompt has its id.

    `bounds` are those of its request.
    """
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
        bounds=bounds,
    )


def _received(row: dict[str, Any]) -> tuple[Any, list[str], list[str]]:
    """Return the body of a line, codes of why there is no usable one, and notes."""
    rejects: list[str] = []
    notes: list[str] = []
    error = row.get("error")
    if isinstance(error, dict) and isinstance(error.get("kind"), str):
        rejects.append(error["kind"])
        notes.append(f"{error['kind']}: {error.get('message')}")
    body, fault = open_envelope(row)
    if fault is not None:
        rejects.append("provider_error")
        notes.append(f"provider_error: {fault}")
    if body is None and isinstance(row.get("response_base64"), str):
        body = _odd_body(row["response_base64"])
    if body is None and not rejects:
        rejects.append("no_response")
    return body, rejects, notes


def _odd_body(encoded: str) -> Any:
    """Read a body that is kept as base64, because it is not strict JSON, as far as possible."""
    try:
        value = load(raw := base64.b64decode(encoded))
    except ValueError:
        return {}
    return {} if nested_too_deeply(raw, value) else value


def name_of(value: Any, fallback: str) -> str:
    """Return an id as text, or the fallback if the line has no usable id."""
    if isinstance(value, str) and value:
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else fallback


def _body_of_fields(value: dict[str, Any]) -> dict[str, Any]:
    """Return a completion body around the bare fields of an answer."""
    finish = value.get("finish_reason") or ("tool_calls" if value.get("tool_calls") else None)
    choice = {
        "message": value,
        "finish_reason": finish,
        "native_finish_reason": value.get("native_finish_reason"),
        "logprobs": value.get("logprobs"),
    }
    return {"provider": value.get("provider"), "usage": value.get("usage"), "choices": [choice]}
