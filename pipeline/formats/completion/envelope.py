"""The body inside a line: bare, under `response`, as JSON text, or one level further down in a batch's output."""

from typing import Any, NamedTuple

import orjson

from pipeline.formats.completion.error_report import error_of
from pipeline.formats.completion.nesting import nested_too_deeply
from pipeline.formats.completion.values import count


class Enclosed(NamedTuple):
    """What an envelope holds."""

    body: Any = None
    """None without a body."""
    fault: str | None = None
    """Why the batch has no answer for this line; the body may still hold an error of its own."""


def name_in(line: dict[str, Any]) -> Any:
    """Return the id by which the asker knows a line: `custom_id` in a batch's output, else `id`; unchecked."""
    return line.get("custom_id") or line.get("id")


def open_envelope(line: dict[str, Any]) -> Enclosed:
    """Return the body of a line with `response`.

    A batch's output (OpenAI's Batch API, `vllm run-batch`) has `response: {status_code, request_id, body}`, and `error`
    with `response: null` for a request that failed as a whole.
    """
    body = _parsed(line.get("response"))
    if isinstance(body, dict) and "body" in body and "choices" not in body:
        status = count(body.get("status_code"))
        body = _parsed(body["body"])
        if status is not None and not 200 <= status < 300:
            return Enclosed(body, f"status_code {status}")
    if "custom_id" in line and (report := error_of({"error": line.get("error")})) is not None:
        return Enclosed(body, report.line)
    return Enclosed(body)


def _parsed(value: Any) -> Any:
    """Return the object that a JSON text holds; any other value as it is."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        parsed = orjson.loads(value)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return value
    return value if nested_too_deeply(value.encode(), parsed) else parsed
