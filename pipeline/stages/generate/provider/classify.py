"""The judgement of one reply: an answer, or a failure of the row, the run or the moment; and what it may cost."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from pipeline.formats.completion.body import provider_of
from pipeline.formats.completion.choices import choice_list
from pipeline.formats.completion.error_kinds import kind_of_words
from pipeline.formats.completion.error_report import ErrorReport, error_of
from pipeline.formats.completion.message_texts import has_text
from pipeline.formats.completion.usage import Usage, usage_of
from pipeline.formats.completion.values import mapping, word
from pipeline.stages.generate.limits.money import Price, billed_cost
from pipeline.stages.generate.limits.retry_after import asked_wait

if TYPE_CHECKING:
    # the network client is slow to import, and writing responses.jsonl needs only `payload`
    from pipeline.core.http import Lost, Reply


class Verdict(StrEnum):
    """The consequence of an outcome."""

    ANSWER = "answer"
    SPOILT = "spoilt"  # a whole answer that was paid for and cannot be used: kept, and not asked for again
    RETRY = "retry"
    FAIL = "fail"  # this row only
    STOP = "stop"  # the whole run: the next request would fare no better


class Outcome(NamedTuple):
    """The end of one request."""

    verdict: Verdict
    kind: str
    """`ok`, or a short code of the failure."""
    message: str = ""
    status: int | None = None
    cost_pico: int | None = 0
    """Picodollars; None if it was, or may have been, billed with an unknown amount."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    provider: str | None = None
    model: str | None = None
    asked_wait: float | None = None
    """Seconds that the server asks to wait."""
    crowded: bool = False
    """Too many requests at once: wait and send fewer; not counted as a failed attempt."""
    outage: bool = False
    """The server as a whole may be down."""
    generation: str | None = None
    """Id under which the router can be asked for the cost later; only if the cost is unknown."""


_REFUSED_UNREAD = frozenset({409, 425, 429, 503, 521, 522, 523, 525, 526, 529, 530})
"""Statuses of requests that no model worked on."""

_ORDERLY = frozenset({500, 502})
"""Statuses of a router's error object after an upstream failure; the config says whether those are billed."""

_RETRIED = frozenset({408, 409, 425, 429})

_LONGEST_ID = 200

_LONGEST_NOTICE = 400
"""Characters of a notice that a gateway sends in the place of an answer."""


def payload(body: bytes) -> bytes:
    """Return the JSON of a body, without keep-alive white space and comment lines (`: PROCESSING`) around it."""
    rest = body.removeprefix(b"\xef\xbb\xbf").strip(b" \t\r\n")
    while rest.startswith(b":"):
        rest = rest.partition(b"\n")[2].lstrip(b" \t\r\n")
    return rest


def generation_id(headers: Mapping[str, str]) -> str | None:
    """Return the router's id of a request; it comes with the headers, so it is known even if the body never arrives."""
    generation = headers.get("x-generation-id")
    return generation if generation and len(generation) <= _LONGEST_ID and generation.isascii() else None


def judge_lost(lost: "Lost", generation: str | None = None) -> Outcome:
    """Judge a request without an answer: free if it never left; else it may be billed."""
    return Outcome(
        Verdict.RETRY, lost.kind, str(lost), cost_pico=None if lost.sent else 0, outage=True, generation=generation
    )


def judge(
    reply: "Reply",
    *,
    price: Price | None,
    errors: Literal["unbilled", "unknown"],
    now: float,
    keeps_account: bool = False,
) -> Outcome:
    """Judge an answer. ``now`` is the time as seconds since the epoch, for `Retry-After` dates.

    If the router ``keeps_account``, a cost that the answer does not state stays unknown, and the router is asked later;
    ``price`` replaces it only for a key of one's own, whose upstream bill the router does not have.
    """
    generation = generation_id(reply.headers)
    askable = keeps_account and generation is not None
    outcome = _judge(reply, _Prices(None if askable else price, price), errors, now)
    return outcome if outcome.cost_pico is not None else outcome._replace(generation=generation)


class _Prices(NamedTuple):
    """What replaces a cost that an answer does not state."""

    usual: Price | None
    own_key: Price | None

    def cost(self, usage: Usage) -> int | None:
        return billed_cost(usage, self.own_key if usage.cost.own_key else self.usual)


_NO_PRICES = _Prices(None, None)


def _judge(reply: "Reply", prices: _Prices, errors: Literal["unbilled", "unknown"], now: float) -> Outcome:
    raw = payload(reply.body)
    if reply.status == 200:
        return _judge_success(raw, reply, prices, errors, now)
    if not 200 <= reply.status < 300:
        error = error_of(_parse(raw)[0])
        return _judge_status(reply.status, error, reply.headers, errors=errors, now=now, fallback=_excerpt(raw))
    # 201, 204, ... come from gateways; the model may have worked for them as for a 200
    return _judge_success(raw, reply, prices, errors, now)._replace(status=reply.status)


def _judge_success(
    raw: bytes, reply: "Reply", prices: _Prices, errors: Literal["unbilled", "unknown"], now: float
) -> Outcome:
    document, fault = _parse(raw)
    if not isinstance(document, dict):
        what = "only white space" if not raw else f"{len(raw)} bytes that are not a JSON object: {_excerpt(raw)}"
        return Outcome(Verdict.RETRY, "not_json", f"HTTP {reply.status} with {what}", 200, None)
    error = error_of(document)
    if error is None and (notice := _notice(document)) is not None:
        error = notice
    elif error is None or document.get("choices"):
        return _judge_answer(document, fault, prices, reply, errors, now)
    status = error.status or 502
    inside = _judge_status(status, error, reply.headers, errors=errors, now=now, fallback=_excerpt(raw))
    usage = usage_of(document)
    return inside._replace(
        kind="provider_error" if inside.kind == f"http_{status}" else inside.kind,
        status=200,
        cost_pico=prices.cost(usage) or inside.cost_pico,
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        provider=provider_of(document),
    )


def _notice(document: dict[str, Any]) -> ErrorReport | None:
    """Return the error that an answer is, or None: a short text about limits or credit, with nothing billed.

    Some gateways send such a notice as the assistant's words, with HTTP 200. An answer about rate limits is billed.
    """
    usage = usage_of(document)
    choices = choice_list(document)
    if usage.completion != 0 or not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    content = mapping(choices[0].get("message")).get("content")
    if not isinstance(content, str) or len(content) > _LONGEST_NOTICE or kind_of_words(content) is None:
        return None
    return ErrorReport(content, {"message": content}, by_name=False)


def _judge_answer(
    document: dict[str, Any],
    fault: str | None,
    prices: _Prices,
    reply: "Reply | None" = None,
    errors: Literal["unbilled", "unknown"] = "unknown",
    now: float = 0.0,
) -> Outcome:
    usage = usage_of(document)
    choices = choice_list(document)
    verdict, kind, message = _use_of(choices, usage.completion, fault)
    if kind == "no_choices":
        message = f"{message}: {_short(json.dumps(document)[:200])}"
    if kind == "provider_error" and reply is not None and not any(map(has_text, choices)):
        reports = (error_of(choice) for choice in choices)
        error = next((report for report in reports if report is not None and report.status in (402, 429)), None)
        if error is not None and error.status is not None:
            inside = _judge_status(error.status, error, reply.headers, errors=errors, now=now, fallback=message)
            return inside._replace(
                status=200,
                cost_pico=prices.cost(usage) or inside.cost_pico,
                prompt_tokens=usage.prompt,
                completion_tokens=usage.completion,
                provider=provider_of(document),
            )
    return Outcome(
        verdict,
        kind,
        message,
        200,
        prices.cost(usage),
        usage.prompt,
        usage.completion,
        provider_of(document),
        word(document.get("model")),
    )


def _use_of(choices: Any, completion_tokens: int | None, fault: str | None) -> tuple[Verdict, str, str]:
    """Return what follows from an answer's choices; ``fault`` says what is wrong with the body's bytes."""
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
        return Verdict.RETRY, "no_choices", "HTTP 200 without any choice"
    for choice in choices:
        error = error_of(choice)
        if error is not None or choice.get("finish_reason") == "error":
            partial = "; partial text came" if has_text(choice) else ""
            return Verdict.RETRY, "provider_error", f"{_message(error) or 'finish_reason error'}{partial}"
    if not completion_tokens and not any(map(has_text, choices)):
        return Verdict.RETRY, "empty_zero_tokens", "the answer is empty and counts no completion tokens"
    if fault is not None:
        why = "the body is not strict JSON in UTF-8 (a lone surrogate, bytes that are not UTF-8, or NaN)"
        return (
            Verdict.SPOILT,
            fault,
            f"{why}: paid for, kept as base64, and not asked again; `store gc --days 0` forgets it",
        )
    return Verdict.ANSWER, "ok", ""


def is_spoilt(body: bytes) -> bool:
    """Return whether a body is an answer that came whole and cannot be used."""
    document, fault = _parse(payload(body))
    return (
        fault is not None
        and isinstance(document, dict)
        and _judge_answer(document, fault, _NO_PRICES).verdict is Verdict.SPOILT
    )


def _parse(raw: bytes) -> tuple[Any, str | None]:
    """Return a document and what is wrong with its bytes: strict JSON first, then all that may hold usage and cost."""
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
    return document, "not_json"  # NaN or Infinity: some servers write them for a log-probability


def _message(error: ErrorReport | None) -> str:
    if error is None:
        return ""
    parts = [error.message, *(error.metadata.get(name) for name in ("provider_name", "raw", "remedy_hint"))]
    return " | ".join(_short(part) for part in parts if isinstance(part, str) and part)


def _short(text: str) -> str:
    flat = "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in " ".join(text[:3000].split())
    )  # no terminal escapes
    return flat if len(flat) <= 300 else flat[:297] + "..."


def _excerpt(raw: bytes) -> str:
    return _short(raw[:200].decode("utf-8", "replace"))


def _judge_status(
    status: int, error: ErrorReport | None, headers: Mapping[str, str], *, errors: str, now: float, fallback: str
) -> Outcome:
    fields = error.fields if error is not None else {}
    metadata = error.metadata if error is not None else {}
    message = f"HTTP {status}: {_message(error) or fallback or 'no message'}"
    if 300 <= status < 400:
        target = _short(headers.get("location", "nowhere"))
        message = f"{message}; it redirects to {target}, and no redirect is followed: is provider.base_url right?"
    wait = asked_wait(headers, fields, now)
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
    if error is not None and error.kind == "credit" and status in (400, 403, 429) and wait is None:
        return outcome(Verdict.STOP, "no_credit")  # a server that names a time to wait will answer then
    if status in (429, 529):
        return outcome(Verdict.RETRY, crowded=True)
    if status in _RETRIED or (status >= 500 and status not in (501, 505)):
        orderly = status in _ORDERLY and error is not None and error.by_name and errors == "unbilled"
        return outcome(Verdict.RETRY, billed=status not in _REFUSED_UNREAD and not orderly, outage=status >= 500)
    if _retryable(fields) is True:
        return outcome(Verdict.RETRY, outage=True)
    return outcome(_refusal(status, fields, metadata))


def _is_in_flight(metadata: dict[str, Any]) -> bool:
    return (
        metadata.get("reason") == "in_flight_budget_exhausted"
        or metadata.get("limit_source") == "openrouter_in_flight_budget"
    )


def _payment_required(metadata: dict[str, Any]) -> tuple[Verdict, str]:
    """Judge a 402 by its reason: too much in flight passes, a large request fails its row, no credit ends the run."""
    if _is_in_flight(metadata):
        return Verdict.RETRY, "in_flight_budget"
    if metadata.get("reason") == "weight_exceeds_budget":
        return Verdict.FAIL, "weight_exceeds_budget"
    return Verdict.STOP, "no_credit"


def _retryable(fields: dict[str, Any]) -> bool | None:
    availability = fields.get("availability")
    answer = availability.get("retryable") if isinstance(availability, dict) else None
    return answer if isinstance(answer, bool) else None


def _refusal(status: int, fields: dict[str, Any], metadata: dict[str, Any]) -> Verdict:
    """Return whether a refusal concerns this prompt, or every prompt."""
    kind = metadata.get("error_type") or fields.get("error_type") or fields.get("type")
    if status < 400 or status in (401, 404, 407, 451):
        return Verdict.STOP
    if status == 403:
        about_prompt = kind == "moderation" or "flagged_input" in metadata or "reasons" in metadata
        return Verdict.FAIL if about_prompt else Verdict.STOP
    if status == 400 and kind in ("model_not_found", "wrong_endpoint"):
        return Verdict.STOP
    return Verdict.FAIL
