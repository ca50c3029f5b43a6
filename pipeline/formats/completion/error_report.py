"""An error that a body reports, in any of the shapes that servers use."""

from typing import Any, NamedTuple

from pipeline.formats.completion.error_kinds import ErrorKind, kind_of
from pipeline.formats.completion.values import mapping

_CODES = ("code", "type", "error_type", "status", "status_code", "error_code", "errcode")
_ANSWERS = frozenset({"content", "text", "output_ids", "meta_info", "reasoning", "reasoning_content", "tool_calls"})
"""Fields of a body or choice that hold an answer."""

_MESSAGES = ("message", "msg", "error_msg", "errmsg", "status_msg", "error_message", "detail")


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
        named = (
            self.fields.get(name) for name in ("code", "http_status", "status_code", "error_code", "errcode", "status")
        )
        return next((code for code in named if isinstance(code, int | str) and not isinstance(code, bool)), None)

    @property
    def message(self) -> str:
        """The server's message, untrusted; empty without one."""
        texts = (self.fields.get(name) for name in _MESSAGES)
        return next((text for text in texts if isinstance(text, str) and text), "")

    @property
    def metadata(self) -> dict[str, Any]:
        """The router's further fields."""
        return mapping(self.fields.get("metadata"))

    @property
    def status(self) -> int | None:
        """The HTTP status that the error means, 400 to 599; None if neither its code nor its words tell."""
        known = self.kind
        if known == "credit":
            return 402
        code = int(self.code) if isinstance(self.code, str) and _is_status(self.code) else self.code
        if isinstance(code, int) and 400 <= code < 600:
            return code
        return {"rate_limit": 429, "refused": 403}.get(known or "")

    @property
    def kind(self) -> ErrorKind | None:
        """Rate limit, missing credit or refusal, as `error_kinds` has it; None for any other error."""
        values = [self.fields.get(name) for name in _CODES]
        codes = [str(value) for value in values if isinstance(value, int | str) and not isinstance(value, bool)]
        raw = self.metadata.get("raw")
        known = kind_of(codes, f"{self.message} {raw if isinstance(raw, str) else ''}")
        return known[0] if known else None

    @property
    def line(self) -> str:
        """Kind, code, type and message on one line; the error as sent if it has none of these."""
        parts = [str(self.fields[key]) for key in ("kind", "code", "type", "message") if self.fields.get(key)]
        return ": ".join(parts) if parts else str(self.value)


def error_of(body: Any) -> ErrorReport | None:
    """Return the error of a body, a choice or a line; None without one.

    Known shapes: `error` or `errors` with an object, a text or a list of these; the error's own fields at the top, as
    vLLM (`object: error`) and gateways (`code` and `message`, `status` and `msg`) write them; `detail` of FastAPI;
    `base_resp` of MiniMax. Only a body without an answer is an error by its words alone.
    """
    if not isinstance(body, dict):
        return None
    if value := body.get("error"):
        return _report(value, by_name=True)
    if body.get("choices") or _ANSWERS & body.keys():
        return None
    if (value := body.get("base_resp")) and isinstance(value, dict) and value.get("status_code"):  # MiniMax
        return ErrorReport(value, value, by_name=False)
    value = body.get("errors") or body.get("detail")
    if value and not isinstance(body.get("message"), str):
        return _report(value, by_name=False)
    report = ErrorReport(body, body, by_name=False)
    says_so = body.get("object") == "error" or body.get("success") is False or bool(set(_CODES) & body.keys())
    return report if report.message and (says_so or report.kind is not None) else None


def _report(value: Any, *, by_name: bool) -> ErrorReport:
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, dict):
        return ErrorReport(value, first, by_name)
    return ErrorReport(value, {"message": first} if isinstance(first, str) else {}, by_name)


def _is_status(text: str) -> bool:
    return len(text) == 3 and text.isascii() and text.isdecimal()
