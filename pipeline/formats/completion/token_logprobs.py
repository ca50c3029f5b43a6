"""The tokens that `logprobs` name, by id or by bytes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

_ID_PREFIX = "token_id:"
"""vLLM writes ids so in place of text with `return_tokens_as_token_ids`."""


class LoggedTokens(NamedTuple):
    """Sampled tokens of one list of entries, in order."""

    ids: list[int] | None
    """Their ids, if the server names all of them."""
    pieces: list[bytes]
    """Otherwise the bytes of each; empty where the server has none to show."""


def logged_tokens(logprobs: Any) -> list[LoggedTokens]:
    """Read a choice's `logprobs`: one list over the whole answer, or one each for reasoning and content."""
    if not isinstance(logprobs, dict):
        return []
    direct = logprobs.get("token_ids")
    if isinstance(direct, list) and direct and all(type(token) is int for token in direct):
        return [LoggedTokens(direct, [])]
    tokens = logprobs.get("tokens")
    if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
        return list(_entries([{"token": token} for token in tokens]))
    return [found for key in ("reasoning_content", "reasoning", "content") for found in _entries(logprobs.get(key))]


def _entries(entries: Any) -> Iterator[LoggedTokens]:
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        return
    named = [token for token in map(_named_id, entries) if token is not None]
    if len(named) == len(entries):
        yield LoggedTokens(named, [])
    else:
        yield LoggedTokens(None, [_bytes(entry) for entry in entries])


def _named_id(entry: dict[str, Any]) -> int | None:
    if type(entry.get("token_id")) is int:
        return int(entry["token_id"])
    token = entry.get("token")
    if isinstance(token, str) and token.startswith(_ID_PREFIX) and token[len(_ID_PREFIX) :].isdecimal():
        return int(token[len(_ID_PREFIX) :])
    return None


def _bytes(entry: dict[str, Any]) -> bytes:
    raw, token = entry.get("bytes"), entry.get("token")
    if isinstance(raw, list) and all(type(b) is int and 0 <= b < 256 for b in raw):
        return bytes(raw)
    try:
        return token.encode() if isinstance(token, str) else b""
    except UnicodeEncodeError:
        return b""
