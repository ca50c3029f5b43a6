"""The judgement of one reply: an answer, or a failure of the row, the run or the moment; and what it may cost."""

import json
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import orjson

from pipeline.formats.completion.body import provider_of
from pipeline.formats.completion.choices import choice_list
from pipeline.formats.completion.error_kinds import RecognizedError, recognize_notice, recognize_words
from pipeline.formats.completion.error_report import ErrorReport, error_of
from pipeline.formats.completion.message_texts import has_text, read_content
from pipeline.formats.completion.usage import Usage, usage_of
from pipeline.formats.completion.values import UnusableFieldError, count, mapping, word
from pipeline.stages.generate.limits.money import Price, billed_cost, to_pico
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

_LONGEST_PAGE = 2000
_DEEPEST_TEXT = 4
_TAG = re.compile(r"<(?:style|script)\b.*?</(?:style|script)>|<[^>]*>", re.DOTALL | re.IGNORECASE)


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
    """For a key of one's own, and for a cost that is given as a text."""

    def cost(self, usage: Usage) -> int | None:
        unsure = usage.cost.own_key or usage.cost.text_usd is not None
        return billed_cost(usage, self.own_key if unsure else self.usual)


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
    error = error_of(document)
    if not isinstance(document, dict):
        error = error or _plain_notice(raw)
        if error is None:
            what = "only white space" if not raw else f"{len(raw)} bytes that are not a JSON object: {_excerpt(raw)}"
            return Outcome(Verdict.RETRY, "not_json", f"HTTP {reply.status} with {what}", 200, None)
        document = {}
    choices = choice_list(document)
    error = error or _choice_error(choices) or _notice(document, choices)
    if error is None and not choices:
        error = _worded_error(document)
    if error is None:
        return _judge_answer(document, fault, prices, _excerpt(raw))
    return _judge_error(error, document, reply, prices, errors, now, raw)


def _judge_error(
    error: ErrorReport,
    document: dict[str, Any],
    reply: "Reply",
    prices: _Prices,
    errors: Literal["unbilled", "unknown"],
    now: float,
    raw: bytes,
) -> Outcome:
    """Judge an error that came with a success."""
    usage, choices = usage_of(document), choice_list(document)
    worked = not _billed_nothing(document) and isinstance(choices, list)
    if worked and any(isinstance(choice, dict) and has_text(choice) for choice in choices):
        # the model worked, so the server may bill it whatever the error is
        message = f"{_message(error) or _excerpt(raw)}; partial text came"
        outcome = Outcome(Verdict.RETRY, "provider_error", message, cost_pico=prices.cost(usage))
    else:
        status = error.status or 502
        inside = _judge_status(status, error, reply.headers, errors=errors, now=now, fallback=_excerpt(raw))
        # a server that refused has nothing to bill, so its counts are not a bill; a cost that it states is one
        refused = inside.crowded or inside.kind == "no_credit"
        cost = to_pico(usage.cost.usd or 0) if refused else prices.cost(usage)
        kind = "provider_error" if inside.kind == f"http_{status}" else inside.kind
        outcome = inside._replace(kind=kind, cost_pico=cost or inside.cost_pico)
    return outcome._replace(
        status=200,
        prompt_tokens=usage.prompt,
        completion_tokens=usage.completion,
        provider=provider_of(document) or outcome.provider,
    )


def _choice_error(choices: Any) -> ErrorReport | None:
    """Return the first error inside a choice."""
    if not isinstance(choices, list):
        return None
    return next((error for choice in choices if (error := error_of(choice)) is not None), None)


def _notice(document: dict[str, Any], choices: Any) -> ErrorReport | None:
    """Return the error that an answer is, or None: a short text about limits or credit, with nothing billed.

    Some gateways send such a notice as the assistant's words, with HTTP 200. An answer about rate limits is billed.
    """
    if not _billed_nothing(document) or not isinstance(choices, list) or len(choices) != 1:
        return None
    message = mapping(mapping(choices[0]).get("message"))
    try:
        text = read_content(message.get("content"))[0] or str(mapping(choices[0]).get("text") or "")
    except UnusableFieldError:
        return None
    if message.get("tool_calls") or len(text) > _LONGEST_NOTICE or recognize_notice(text) is None:
        return None
    return _worded(text, recognize_notice(text))


def _billed_nothing(document: dict[str, Any]) -> bool:
    completion = usage_of(document).completion
    return completion == 0 or (completion is None and count(mapping(document.get("usage")).get("total_tokens")) == 0)


def _plain_notice(raw: bytes) -> ErrorReport | None:
    """Return the error that a text or a page is, if its words say so; JSON that was cut short may be an answer."""
    text = raw.decode("utf-8", "replace")
    return None if raw.startswith((b"{", b"[")) else _worded(_tag_free(text), recognize_words(_tag_free(text)))


def _worded_error(document: dict[str, Any]) -> ErrorReport | None:
    """Return the error that a body without an answer is by its words, wherever they are in it."""
    text = " ".join(_texts_in(document, 0))
    return _worded(text, recognize_words(text))


def _worded(text: str, recognized: RecognizedError | None) -> ErrorReport | None:
    return None if recognized is None else ErrorReport(text, {"message": text, "status": recognized.status}, False)


def _texts_in(value: Any, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST_TEXT and isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(part, depth + 1)


def _tag_free(page: str) -> str:
    return " ".join(_TAG.sub(" ", page[:_LONGEST_PAGE]).split())


def _judge_answer(document: dict[str, Any], fault: str | None, prices: _Prices, excerpt: str = "") -> Outcome:
    usage = usage_of(document)
    verdict, kind, message = _use_of(choice_list(document), usage.completion, fault)
    return Outcome(
        verdict,
        kind,
        f"{message}: {excerpt}" if kind == "no_choices" else message,
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
    if _is_in_flight(metadata):
        return outcome(Verdict.RETRY, "in_flight_budget", crowded=True)
    if metadata.get("reason") == "weight_exceeds_budget":
        return outcome(Verdict.FAIL, "weight_exceeds_budget")
    recognized = error.recognized if error is not None else None
    kind, meant, by_code = recognized or (None, None, False)
    # Google tells of the requests of a minute in the words of missing credit, and names a time to wait
    if status == 402 or (kind == "credit" and (by_code or wait is None)):
        return outcome(Verdict.STOP, "no_credit")
    if status in (429, 529) or (kind == "rate_limit" and by_code):
        return outcome(Verdict.RETRY, crowded=True)
    if 400 <= status < 500 and kind == "refused" and meant == 400:
        return outcome(Verdict.FAIL)
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
