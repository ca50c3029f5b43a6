"""An error that a body reports, in any of the shapes that servers use."""

from typing import Any, NamedTuple

from pipeline.formats.completion.error_kinds import RecognizedError, recognize
from pipeline.formats.completion.values import mapping

_CODES = ("code", "http_status", "status_code", "error_code", "errcode", "status")
"""Fields that hold a code: an HTTP status, a number of the server's own, or a word."""

_TYPES = ("type", "error_type")

_MESSAGES = ("message", "msg", "error_msg", "errmsg", "status_msg", "error_message", "detail")

_ANSWERS = frozenset({"content", "text", "output_ids", "meta_info", "reasoning", "reasoning_content", "tool_calls"})
"""Fields of a body or choice that hold an answer."""

_MOST_NESTED = 3
"""Errors inside errors, as gateways wrap those of a server behind them."""


class ErrorReport(NamedTuple):
    """One error."""

    value: Any
    """The error as sent."""
    fields: dict[str, Any]
    """Its fields; `message` alone if the error is a text."""
    by_name: bool
    """Whether the body has it under `error`."""

    @property
    def code(self) -> int | str | None:
        """The server's code: an HTTP status, a number of its own, or a word."""
        values = (self.fields.get(name) for name in _CODES)
        return next((value for value in values if isinstance(value, int | str) and not isinstance(value, bool)), None)

    @property
    def codes(self) -> list[str]:
        """The server's codes and types, as text."""
        values = (self.fields.get(name) for name in (*_CODES, *_TYPES))
        return [str(value) for value in values if isinstance(value, int | str) and not isinstance(value, bool)]

    @property
    def message(self) -> str:
        """The server's message, untrusted; empty without one."""
        return _message(self.fields)

    @property
    def metadata(self) -> dict[str, Any]:
        """The router's further fields."""
        return mapping(self.fields.get("metadata"))

    @property
    def status(self) -> int | None:
        """The HTTP status that the error means, 400 to 599; None if neither its codes nor its words tell."""
        numbers = (int(code) for code in self.codes if _is_status(code))
        stated = next((number for number in numbers if 400 <= number < 600), None)
        if stated is not None:
            return stated
        return self.recognized.status if self.recognized is not None else None

    @property
    def recognized(self) -> RecognizedError | None:
        """The kind of the error, by the table in `error_kinds`.

        The words of a server behind a router count only where the router's own codes and words say nothing: the quota
        of that server is not the user's.
        """
        own = recognize(self.codes, self.message)
        if own is not None or any(map(_is_status, self.codes)):
            return own
        raw = self.metadata.get("raw")
        return recognize([], raw) if isinstance(raw, str) else None

    @property
    def line(self) -> str:
        """Kind, code, type and message on one line; the error as sent if it has none of these."""
        parts = [str(self.fields[key]) for key in ("kind", "code", "type", "message") if self.fields.get(key)]
        return ": ".join(parts) if parts else str(self.value)


def error_of(body: Any) -> ErrorReport | None:
    """Return the error of a body, a choice or a line; None without one.

    Known shapes: `error` or `errors` with an object, a text or a list of these, also `error: true` or a text beside
    `code` and `message`; the error's own fields at the top, as vLLM (`object: error`) and gateways (`code` and
    `message`, `status` and `msg`) write them; `detail` of FastAPI; `base_resp` of MiniMax; an object in a list, as
    Google sends it. Only a body without an answer is an error by its words alone, and an `error` whose fields are all
    empty is none: One API sends it with each answer.
    """
    if isinstance(body, list) and body and isinstance(body[0], dict) and "error" in body[0]:
        body = body[0]
    if not isinstance(body, dict):
        return None
    if _says_something(value := body.get("error")):
        return _report(value, body, by_name=True)
    if body.get("choices") or _ANSWERS & body.keys():
        return None
    value = body.get("base_resp")
    if isinstance(value, dict) and value.get("status_code"):
        named = f"base_resp_{value['status_code']}"  # the numbers of several companies differ in meaning
        return ErrorReport(value, {**value, "type": named}, by_name=False)
    value = body.get("errors") or body.get("detail")
    if value and not isinstance(body.get("message"), str):
        return _report(value, body, by_name=False)
    report = _report(body, {}, by_name=False)
    says_so = body.get("object") == "error" or body.get("success") is False or bool({*_CODES, *_TYPES} & body.keys())
    return report if report.message and (says_so or report.recognized is not None) else None


def _says_something(value: Any) -> bool:
    return any(value.values()) if isinstance(value, dict) else bool(value)


def _report(value: Any, around: dict[str, Any], *, by_name: bool) -> ErrorReport:
    """Read the error ``value``, which is a field of ``around``."""
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, dict):
        return ErrorReport(value, _innermost(first), by_name)
    fields = {name: around[name] for name in (*_CODES, *_TYPES, "metadata") if name in around}
    texts = dict.fromkeys(text for text in (first, _message(around)) if isinstance(text, str) and text)
    return ErrorReport(value, {**fields, "message": ": ".join(texts)}, by_name)


def _innermost(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an error with those of an error inside it, if only that has a message."""
    for _ in range(_MOST_NESTED):
        nested = next((fields[name] for name in ("error", *_MESSAGES) if isinstance(fields.get(name), dict)), None)
        if nested is None or _message(fields):
            break
        fields = {**fields, **nested}
    text = fields.get("error")
    return {**fields, "message": text} if isinstance(text, str) and text and not _message(fields) else fields


def _message(fields: dict[str, Any]) -> str:
    texts = (fields.get(name) for name in _MESSAGES)
    return next((text for text in texts if isinstance(text, str) and text), "")


def _is_status(text: str) -> bool:
    return len(text) == 3 and text.isascii() and text.isdecimal()
