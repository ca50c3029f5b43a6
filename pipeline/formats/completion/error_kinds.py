"""The kind of an error that a server reports: one table of codes and words, whatever the shape of the error.

A code that names the cause decides first, then the words of the message, then a code that only names a class of
errors: DeepSeek reports missing credit as `invalid_request_error`, and only the message tells. Among words, missing
credit decides before a rate limit, since servers put the words of a rate limit around it. `docs/generate.md` has the
source of each row.
"""

from typing import Literal, NamedTuple

ErrorKind = Literal["credit", "rate_limit", "refused"]
"""Any other error is a broken request: the server may have worked for it."""

_LONGEST_OPENING = 200
"""Characters of a message in which its words count: a validation error quotes the prompt further on."""


class RecognizedError(NamedTuple):
    """The kind of an error, and how it is known."""

    kind: ErrorKind
    status: int
    """The HTTP status that fits the error: 402, 429, or one of 400, 401, 403 and 404 for a refusal."""
    by_code: bool
    """True when a code or type of the server's names the kind, False when only its words do."""


class _Row(NamedTuple):
    kind: ErrorKind
    status: int
    marks: tuple[str, ...]
    """Parts of a code or of a message, in lower case; a number is compared as a whole."""


_CAUSES = (
    _Row(
        "credit",
        402,
        (
            "insufficient_quota",  # OpenAI
            "billing_hard_limit",  # OpenAI: billing_hard_limit_reached
            "billing_not_active",  # OpenAI
            "credit_balance",  # OpenAI: credit_balance_exhausted; Anthropic: credit_balance_too_low
            "spend_limit_exceeded",  # OpenAI: of the organization, or of the project
            "usage_limit_exceeded",  # OpenAI: organization_usage_limit_exceeded
            "billing_error",  # Anthropic
            "exceeded_current_quota",  # Moonshot: exceeded_current_quota_error
            "insufficient_balance",
            "insufficient_credit",
            "insufficient_funds",
            "insufficient_user_quota",  # One API, New API
            "pre_consume_token_quota_failed",  # One API, New API
            "budget_exceeded",  # LiteLLM
            "payment_required",
            "402",  # Google: beside the status RESOURCE_EXHAUSTED, which is also that of its rate limits
            "arrearage",  # DashScope
            "1113",  # Zhipu: the account is in arrears
            "1309",  # Zhipu: the plan has expired
            "freetieronly",  # DashScope: AllocationQuota.FreeTierOnly
            "base_resp_1008",  # MiniMax: insufficient balance
        ),
    ),
    _Row(
        "rate_limit",
        429,
        (
            "rate_limit",  # OpenAI, Anthropic, Moonshot, Mistral
            "ratelimit",
            "too_many_requests",
            "slow_down",  # OpenAI
            "resource_exhausted",  # Google
            "throttl",  # AWS: ThrottlingException; DashScope: Throttling.RateQuota; LiteLLM: throttling_error
            "overloaded",  # Anthropic: overloaded_error; Moonshot: engine_overloaded_error
            "tier_capacity_exceeded",  # Mistral
            "1302",  # Zhipu: too many requests at once
            "1303",  # Zhipu: too many requests in a time
            "1304",  # Zhipu: the calls of a day
            "1305",  # Zhipu: the model has too much traffic
            "1308",  # Zhipu: the limit of a plan, with the time at which it starts anew
            "base_resp_1002",  # MiniMax: rate limit; Zhipu's 1002 is a wrong key
        ),
    ),
    _Row(
        "refused",
        400,
        (
            "content_filter",  # Azure
            "content_policy",  # OpenAI: content_policy_violation
            "moderation",  # OpenAI: moderation_blocked
            "data_inspection_failed",  # DashScope
            "context_length",  # OpenAI: context_length_exceeded
            "1301",  # Zhipu: unsafe content
        ),
    ),
)
"""Codes and types that name the cause; spaces and `-` are written `_`."""

_WORDS = (
    _Row(
        "credit",
        402,
        (
            "exceeded your current quota",  # OpenAI
            "insufficient balance",  # DeepSeek, Moonshot, Zhipu
            "insufficient credit",  # OpenRouter
            "insufficient quota",
            "insufficient funds",
            "credit balance is too low",  # Anthropic, as a 400 of type invalid_request_error
            "credit limit exceeded",  # Together, whose type credit_limit is also that of its rate limits
            "used all available credits",  # xAI
            "prepayment credits are depleted",  # Google
            "run out of credits",  # xAI
            "out of credit",
            "no credits",
            "not enough credit",
            "requires more credits",  # OpenRouter
            "budget has been exceeded",  # LiteLLM, with a type that varies
            "exceededbudget",  # LiteLLM
            "billing hard limit",  # OpenAI
            "payment required",
            "余额不足",  # Zhipu, DeepSeek
            "欠费",  # Zhipu
            "额度不足",  # One API
            "配额不足",
        ),
    ),
    _Row(
        "rate_limit",
        429,
        (
            "rate limit",
            "rate-limit",
            "rate_limit",
            "ratelimit",
            "too many requests",
            "too many concurrent",
            "concurrency limit",
            "requests per minute",
            "tokens per minute",
            "quota exceeded",  # Google: of requests in a minute
            "overloaded",
            "server is busy",
            "请求过多",
            "并发数",
            "频率",
            "频繁",
            "速率限制",  # Zhipu
            "限流",
        ),
    ),
    _Row("refused", 400, ("content policy", "content management policy", "flagged as potentially")),
)
"""Words of a message."""

_CLASSES = (
    _Row(
        "refused",
        401,
        (
            "invalid_api_key",  # OpenAI
            "authentication",  # Anthropic: authentication_error; Moonshot: invalid_authentication_error
            "unauthorized",
            "1000",  # 1000 to 1004, Zhipu: the key
            "1001",
            "1002",
            "1003",
            "1004",
            "base_resp_1004",  # MiniMax: the key
        ),
    ),
    _Row("refused", 403, ("permission", "access_denied", "account_deactivated", "1110", "1111", "1112", "1121")),
    _Row("refused", 404, ("model_not_found", "not_found", "notfound", "1211")),
    _Row("refused", 400, ("invalid_request", "bad_request", "badrequest", "invalid_parameter", "1210", "1213", "1214")),
)
"""Codes and types that name only a class of errors."""

_NOTICE_WORDS = (
    "limit reached",
    "limit exceeded",
    "try again later",
    "retry later",
    "稍后再试",
    "稍后重试",
    "繁忙",
)
"""Words of a rate limit where nothing was billed; in an error they may belong to a server that broke at its work."""


def recognize(codes: list[str], message: str) -> RecognizedError | None:
    """Return what an error means, or None where neither code nor words tell.

    ``codes``: the server's code, type and status, as text; ``message``: its words. All of it is untrusted.
    """
    plain = [code.strip().lower().replace("-", "_").replace(" ", "_") for code in codes]
    by_cause = _first(_CAUSES, plain)
    if by_cause is not None:
        return RecognizedError(by_cause.kind, by_cause.status, by_code=True)
    if (by_words := recognize_words(message)) is not None:
        return by_words
    by_class = _first(_CLASSES, plain)
    return None if by_class is None else RecognizedError(by_class.kind, by_class.status, by_code=True)


def recognize_words(message: str) -> RecognizedError | None:
    """Return what the first words of a message mean, or None."""
    row = _first(_WORDS, [_opening(message)])
    return None if row is None else RecognizedError(row.kind, row.status, by_code=False)


def recognize_notice(text: str) -> RecognizedError | None:
    """Return what a text means for which nothing was billed: a rate limit, missing credit, or None for an answer."""
    recognized = recognize_words(text)
    if recognized is not None:
        return None if recognized.kind == "refused" else recognized
    opening = _opening(text)
    return RecognizedError("rate_limit", 429, by_code=False) if any(map(opening.__contains__, _NOTICE_WORDS)) else None


def _opening(message: str) -> str:
    return " ".join(message[:_LONGEST_OPENING].lower().replace("’", "'").split())


def _first(rows: tuple[_Row, ...], texts: list[str]) -> _Row | None:
    return next((row for row in rows if any(_has(text, mark) for text in texts for mark in row.marks)), None)


def _has(text: str, mark: str) -> bool:
    return text == mark if mark.isdecimal() else mark in text
