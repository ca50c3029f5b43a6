"""An error that a body reports, in any of the shapes that servers use."""

from typing import Any, NamedTuple

from pipeline.formats.completion.values import mapping

_RATE_LIMITS = ("rate_limit", "ratelimit", "too_many_requests", "resource_exhausted")
"""In the code or type of an error that means HTTP 429."""


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
        """The server's code: an HTTP status, or a word."""
        code = self.fields.get("code", self.fields.get("http_status"))
        return code if isinstance(code, int | str) and not isinstance(code, bool) else None

    @property
    def message(self) -> str:
        """The server's message, untrusted; empty without one."""
        message = self.fields.get("message")
        return message if isinstance(message, str) else ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The router's further fields."""
        return mapping(self.fields.get("metadata"))

    @property
    def status(self) -> int | None:
        """The HTTP status that the error means, 400 to 599; None if its code does not tell."""
        code = int(self.code) if isinstance(self.code, str) and _is_status(self.code) else self.code
        if isinstance(code, int) and 400 <= code < 600:
            return code
        words = (self.fields.get(name) for name in ("code", "type", "error_type", "status"))
        limited = any(known in text.lower() for text in words if isinstance(text, str) for known in _RATE_LIMITS)
        return 429 if limited else None

    @property
    def line(self) -> str:
        """Kind, code, type and message on one line; the error as sent if it has none of these."""
        parts = [str(self.fields[key]) for key in ("kind", "code", "type", "message") if self.fields.get(key)]
        return ": ".join(parts) if parts else str(self.value)


def error_of(body: Any) -> ErrorReport | None:
    """Return the error of a body, a choice or a line; None without one.

    Known shapes: `error` or `errors` with an object, a text or a list of these; the error's own fields at the top, as
    vLLM (`object: error`) and gateways (`code`, `message`) write them; `detail` of FastAPI.
    """
    if not isinstance(body, dict):
        return None
    if value := body.get("error"):
        return _report(value, by_name=True)
    if "choices" in body:
        return None
    if isinstance(body.get("message"), str) and (body.get("object") == "error" or {"code", "type"} & body.keys()):
        return ErrorReport(body, body, by_name=False)
    value = body.get("errors") or body.get("detail")
    return _report(value, by_name=False) if value else None


def _report(value: Any, *, by_name: bool) -> ErrorReport:
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, dict):
        return ErrorReport(value, first, by_name)
    return ErrorReport(value, {"message": first} if isinstance(first, str) else {}, by_name)


def _is_status(text: str) -> bool:
    return len(text) == 3 and text.isascii() and text.isdecimal()
