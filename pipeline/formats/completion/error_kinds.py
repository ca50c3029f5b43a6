"""The kind of an error that a server reports: one table of codes and words, whatever the shape of the error.

A code decides before a word of the message. Among words, missing credit decides before a rate limit, since servers
tell of missing credit with "429" and the words of a rate limit around it.
"""

from typing import Literal, NamedTuple

ErrorKind = Literal["credit", "rate_limit", "refused", "broken"]


class _Row(NamedTuple):
    """What one kind of error is recognized by."""

    kind: ErrorKind
    status: int
    """The HTTP status that a server with better manners would have sent."""
    codes: tuple[str, ...]
    """Parts of a code or type, lower case, `_` for `-` and spaces; numbers are compared as a whole."""
    phrases: tuple[str, ...]
    """Parts of a message, lower case."""


_TABLE = (
    _Row(
        "credit",
        402,
        (
            "insufficient_quota",  # OpenAI, error code of a 429
            "billing_hard_limit",  # OpenAI, billing_hard_limit_reached
            "exceeded_current_quota",  # Moonshot, type exceeded_current_quota_error
            "insufficient_balance",  # DeepSeek (402), Moonshot
            "insufficient_credit",
            "insufficient_user_quota",  # one-api and its descendants
            "payment_required",
            "arrearage",  # Alibaba's DashScope
            "1113",  # Zhipu: the account is in arrears
            "1008",  # MiniMax: insufficient balance
        ),
        (
            "exceeded your current quota",
            "insufficient balance",
            "insufficient credit",
            "insufficient quota",
            "insufficient funds",
            "credit balance is too low",  # Anthropic
            "out of credit",
            "no credits",
            "not enough credit",
            "requires more credits",  # OpenRouter
            "add credits",
            "billing hard limit",
            "payment required",
            "余额不足",
            "欠费",
            "额度不足",
            "配额不足",
        ),
    ),
    _Row(
        "rate_limit",
        429,
        (
            "rate_limit",
            "ratelimit",
            "too_many_requests",
            "resource_exhausted",  # Google
            "throttl",  # AWS ThrottlingException, DashScope Throttling.RateQuota
            "overloaded",  # Anthropic overloaded_error, Moonshot engine_overloaded_error
            "1302",  # Zhipu: too many requests at once
            "1303",  # Zhipu: too many requests in a time
            "1305",  # Zhipu: the model is overloaded
            "1002",  # MiniMax: rate limit
        ),
        (
            "rate limit",
            "rate-limit",
            "rate_limit",
            "ratelimit",
            "too many requests",
            "too many concurrent",
            "requests per minute",
            "tokens per minute",
            "try again later",
            "retry later",
            "overloaded",
            "server is busy",
            "请求过多",
            "并发数",
            "频率",
            "限流",
            "稍后再试",
            "稍后重试",
        ),
    ),
    _Row(
        "refused",
        403,
        ("content_filter", "moderation", "content_policy", "data_inspection_failed", "1301"),  # DashScope, Zhipu
        ("content policy", "content management policy", "flagged as potentially"),
    ),
)


def kind_of(codes: list[str], message: str) -> tuple[ErrorKind, int] | None:
    """Return the kind of an error and the HTTP status that it means, or None where neither code nor words tell.

    ``codes``: the server's code, type and status, as text; ``message``: its words. All of it is untrusted.
    """
    plain = [code.strip().lower().replace("-", "_").replace(" ", "_") for code in codes]
    for row in _TABLE:
        if any(_has_code(code, known) for code in plain for known in row.codes):
            return row.kind, row.status
    return kind_of_words(message)


def kind_of_words(text: str) -> tuple[ErrorKind, int] | None:
    """Return the kind that a message's words tell, and the HTTP status that it means, or None."""
    words = " ".join(text.lower().split())
    for row in _TABLE:
        if any(phrase in words for phrase in row.phrases):
            return row.kind, row.status
    return None


def _has_code(code: str, known: str) -> bool:
    return code == known if known.isdecimal() else known in code
