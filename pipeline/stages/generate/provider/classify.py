"""What came back, judged: an answer, a failure of the row, of the run, or of the moment; and what it may have cost. Pure."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from pipeline.stages.generate.limits.money import Price, billed_cost, billed_tokens
from pipeline.stages.generate.limits.retry_after import asked_wait
from pipeline.stages.generate.provider.policy import mapping, served_by

if TYPE_CHECKING:
    from pipeline.core.http import (  # the network client is slow to import, and writing responses.jsonl needs only `payload`
        Lost,
        Reply,
    )


class Verdict(StrEnum):
    """What follows from an outcome."""

    ANSWER = "answer"
    SPOILT = (
        "spoilt"  # an answer that came whole, was paid for, and cannot be used: kept, and not asked for again and again
    )
    RETRY = "retry"
    FAIL = "fail"  # this row only
    STOP = "stop"  # the whole run: the next request would fare no better


class Outcome(NamedTuple):
    """One request, over."""

    verdict: Verdict
    kind: str
    """`ok`, or a short code of the failure."""
    message: str = ""
    status: int | None = None
    cost_pico: int | None = 0
    """Picodollars; None when it was, or may have been, billed with an unknown amount."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    provider: str | None = None
    model: str | None = None
    asked_wait: float | None = None
    """Seconds that the server asks to wait."""
    crowded: bool = False
    """Too much at once: wait and send less at a time; does not count as a failed attempt."""
    outage: bool = False
    """The server as a whole may be down."""
    generation: str | None = None
    """Id under which the router can be asked later what it cost; only where that is not known."""


_REFUSED_UNREAD = frozenset({409, 425, 429, 503, 521, 522, 523, 525, 526, 529, 530})
"""Statuses that say that no model worked on the request."""

_ORDERLY = frozenset({500, 502})
"""Statuses that a router answers with an error object when an upstream failed; whether that is billed, the config says."""

_RETRIED = frozenset({408, 409, 425, 429})

_LONGEST_ID = 200


def payload(body: bytes) -> bytes:
    """JSON part of a body: keep-alive white space and comment lines (`: PROCESSING`) before it, and white space after it, cut off."""
    rest = body.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
    while rest.startswith(b":"):
        rest = rest.partition(b"\n")[2].lstrip(b" \t\r\n")
    return rest


def generation_id(headers: Mapping[str, str]) -> str | None:
    """Id by which the router knows a request; it comes with the headers, so it is known even of a body that never does."""
    found = headers.get("x-generation-id")
    return found if found and len(found) <= _LONGEST_ID and found.isascii() else None


def judge_lost(lost: "Lost", generation: str | None = None) -> Outcome:
    """Judge a request without an answer: nothing is owed when it never left; else it may be billed."""
    return Outcome(
        Verdict.RETRY, lost.kind, str(lost), cost_pico=None if lost.sent else 0, outage=True, generation=generation
    )


def judge(reply: "Reply", *, price: Price | None, errors: Literal["unbilled", "unknown"], now: float) -> Outcome:
    """Judge an answer. ``now`` is the time as seconds since the epoch, for `Retry-After` dates."""
    outcome = _judge(reply, price, errors, now)
    return outcome if outcome.cost_pico is not None else outcome._replace(generation=generation_id(reply.headers))


def _judge(reply: "Reply", price: Price | None, errors: Literal["unbilled", "unknown"], now: float) -> Outcome:
    raw = payload(reply.body)
    if reply.status == 200:
        return _judge_success(raw, reply, price, errors, now)
    if not 200 <= reply.status < 300:
        return _judge_status(
            reply.status, _error_of(_parse(raw)[0]), reply.headers, errors=errors, now=now, fallback=_excerpt(raw)
        )
    # 201, 204, ... come from gateways; the model may have worked for them as for a 200
    return _judge_success(raw, reply, price, errors, now)._replace(status=reply.status)


def _judge_success(
    raw: bytes, reply: "Reply", price: Price | None, errors: Literal["unbilled", "unknown"], now: float
) -> Outcome:
    document, fault = _parse(raw)
    if not isinstance(document, dict):
        what = "nothing but white space" if not raw else f"{len(raw)} bytes that are no JSON object: {_excerpt(raw)}"
        return Outcome(Verdict.RETRY, "not_json", f"HTTP {reply.status} with {what}", 200, None)
    choices = document.get("choices")
    if document.get("error") and not choices:
        error = _error_of(document)
        code = error.get("code", error.get("http_status"))
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        inside = _judge_status(status, error, reply.headers, errors=errors, now=now, fallback=_excerpt(raw))
        kind = inside.kind if inside.kind != f"http_{status}" else "provider_error"
        return Outcome(
            inside.verdict,
            kind,
            inside.message,
            200,
            inside.cost_pico,
            None,
            None,
            served_by(document),
            None,
            inside.asked_wait,
            inside.crowded,
            inside.outage,
        )
    return _judge_answer(document, choices, fault, price)


def _judge_answer(document: dict[str, Any], choices: Any, fault: str | None, price: Price | None) -> Outcome:
    usage = document.get("usage")
    prompt_tokens, completion_tokens = billed_tokens(usage)
    model = document.get("model")
    verdict, kind, message = _use_of(choices, completion_tokens, fault)
    model = model if isinstance(model, str) else None
    return Outcome(
        verdict,
        kind,
        message,
        200,
        billed_cost(usage, price),
        prompt_tokens,
        completion_tokens,
        served_by(document),
        model,
    )


def _use_of(choices: Any, completion_tokens: int | None, fault: str | None) -> tuple[Verdict, str, str]:
    """Whether an answer's choices can be used; ``fault`` is what is wrong with the body's bytes."""
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        return Verdict.RETRY, "no_choices", "HTTP 200 without any choice"
    for choice in choices:
        if choice.get("error") or choice.get("finish_reason") == "error":
            partial = "; partial text came" if _has_text(choice) else ""
            return Verdict.RETRY, "provider_error", f"{_message(_error_of(choice)) or 'finish_reason error'}{partial}"
    if not completion_tokens and not any(map(_has_text, choices)):
        return Verdict.RETRY, "empty_zero_tokens", "the answer is empty and counts no completion tokens"
    if fault is not None:
        why = "the body is not strict JSON in UTF-8 (a lone surrogate, bytes that are no UTF-8, or NaN)"
        return (
            Verdict.SPOILT,
            fault,
            f"{why}: paid for, kept as base64, and not asked again; `store gc --days 0` forgets it",
        )
    return Verdict.ANSWER, "ok", ""


def is_spoilt(body: bytes) -> bool:
    """Whether a body is an answer that came whole and cannot be used."""
    document, fault = _parse(payload(body))
    return (
        fault is not None
        and isinstance(document, dict)
        and _judge_answer(document, document.get("choices"), fault, None).verdict is Verdict.SPOILT
    )


def _has_text(choice: dict[str, Any]) -> bool:
    message = choice.get("message")
    if not isinstance(message, dict):
        return bool(choice.get("text"))
    return any(
        message.get(field)
        for field in ("content", "reasoning", "reasoning_content", "tool_calls", "reasoning_details", "refusal")
    )


def _parse(raw: bytes) -> tuple[Any, str | None]:
    """Give a document and what is wrong with its bytes: strict JSON first, then anything that still holds usage and cost."""
    try:
        return orjson.loads(raw), None
    except orjson.JSONDecodeError:
        pass
    try:
        document = json.loads(raw.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None, "not_json"
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return document, "text_not_utf8"
    except RecursionError:
        return None, "not_json"
    return document, "not_json"  # NaN, Infinity: some servers write them, for a log-probability say


def _error_of(document: Any) -> dict[str, Any]:
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        return error
    return {"message": error} if isinstance(error, str) else {}


def _message(error: dict[str, Any]) -> str:
    metadata = error.get("metadata")
    parts = [error.get("message")]
    if isinstance(metadata, dict):
        parts += [metadata.get("provider_name"), metadata.get("raw"), metadata.get("remedy_hint")]
    return " | ".join(_short(part) for part in parts if isinstance(part, str) and part)


def _short(text: str) -> str:
    flat = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text[:3000].split())
    )  # no terminal escapes
    return flat if len(flat) <= 300 else flat[:297] + "..."


def _excerpt(raw: bytes) -> str:
    return _short(raw[:200].decode("utf-8", "replace"))


def _judge_status(
    status: int, error: dict[str, Any], headers: Mapping[str, str], *, errors: str, now: float, fallback: str
) -> Outcome:
    metadata = mapping(error.get("metadata"))
    message = f"HTTP {status}: {_message(error) or fallback or 'no message'}"
    if 300 <= status < 400:
        message = f"{message}; it redirects to {_short(headers.get('location', 'nowhere'))}, and no redirect is followed: is provider.base_url right?"
    wait = asked_wait(headers, error, now)
    provider = metadata.get("provider_name") if isinstance(metadata.get("provider_name"), str) else None

    def outcome(
        verdict: Verdict,
        kind: str = f"http_{status}",
        *,
        billed: bool = False,
        crowded: bool = False,
        outage: bool = False,
    ) -> Outcome:
        return Outcome(
            verdict,
            kind,
            message,
            status,
            None if billed else 0,
            provider=provider,
            asked_wait=wait,
            crowded=crowded,
            outage=outage,
        )

    if status < 200:  # a switch of protocol that nobody asked for
        return outcome(Verdict.RETRY, billed=True, outage=True)
    if status == 402:
        return outcome(*_payment_required(metadata), crowded=_is_in_flight(metadata))
    if status in (429, 529):
        return outcome(Verdict.RETRY, crowded=True)
    if status in _RETRIED or (status >= 500 and status not in (501, 505)):
        orderly = status in _ORDERLY and bool(error) and errors == "unbilled"
        return outcome(Verdict.RETRY, billed=status not in _REFUSED_UNREAD and not orderly, outage=status >= 500)
    if _retryable(error) is True:
        return outcome(Verdict.RETRY, outage=True)
    return outcome(_refusal(status, error, metadata))


def _is_in_flight(metadata: dict[str, Any]) -> bool:
    return (
        metadata.get("reason") == "in_flight_budget_exhausted"
        or metadata.get("limit_source") == "openrouter_in_flight_budget"
    )


def _payment_required(metadata: dict[str, Any]) -> tuple[Verdict, str]:
    """402 by its reason: too much in flight passes, one request too large is that row's fault, no credit ends the run."""
    if _is_in_flight(metadata):
        return Verdict.RETRY, "in_flight_budget"
    if metadata.get("reason") == "weight_exceeds_budget":
        return Verdict.FAIL, "weight_exceeds_budget"
    return Verdict.STOP, "no_credit"


def _retryable(error: dict[str, Any]) -> bool | None:
    availability = error.get("availability")
    answer = availability.get("retryable") if isinstance(availability, dict) else None
    return answer if isinstance(answer, bool) else None


def _refusal(status: int, error: dict[str, Any], metadata: dict[str, Any]) -> Verdict:
    """Whether a refusal is about this prompt or about every one."""
    kind = metadata.get("error_type") or error.get("error_type") or error.get("type")
    if status < 400 or status in (401, 404, 407, 451):
        return Verdict.STOP
    if status == 403:
        about_prompt = kind == "moderation" or "flagged_input" in metadata or "reasons" in metadata
        return Verdict.FAIL if about_prompt else Verdict.STOP
    if status == 400 and kind in ("model_not_found", "wrong_endpoint"):
        return Verdict.STOP
    return Verdict.FAIL
