"""responses.jsonl, written from the ledger."""

import base64
import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import orjson

from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.ledger.queries import latest_attempts
from pipeline.stages.generate.ledger.records import LatestAttempt
from pipeline.stages.generate.limits.money import to_usd
from pipeline.stages.generate.provider.classify import payload
from pipeline.stages.generate.provider.policy import other_model
from pipeline.stages.generate.requests.prompt_source import chunks, plan_row
from pipeline.stages.generate.requests.request import RequestBuilder

RESPONSE = b',"response":'
_RESPONSE_BASE64 = b',"response_base64":'


@dataclass(slots=True)
class ProviderCounts:
    """Sums over one provider's answers."""

    answers: int = 0
    completion_tokens: int = 0
    cost_pico: int = 0


@dataclass(slots=True)
class Totals:
    """Sums over a dataset's rows, in prompt order."""

    prompts: int = 0
    answered: int = 0
    outside_policy: int = 0
    not_asked: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    retried: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_pico: int = 0
    uncertain: int = 0
    uncertain_pico: int = 0
    providers: dict[str, ProviderCounts] = field(default_factory=dict)
    digest: Any = field(default_factory=hashlib.sha256)
    """The same digest as `Survey.digest`."""

    def add(self, prompt_id: str, key: str, attempt: LatestAttempt | None, *, key_is_new: bool) -> None:
        """Count a row. The money of a key that several prompts share is counted once."""
        self.prompts += 1
        self.digest.update(plan_row(prompt_id, key, attempt.id if attempt is not None and attempt.settled else 0))
        if attempt is None:
            self.not_asked += 1
            return
        if attempt.answered:
            self.answered += 1
            self.outside_policy += attempt.policy is not None
        else:
            self.failed[attempt.kind or "unknown"] += 1
        if key_is_new:
            self._add_key(attempt)

    def _add_key(self, attempt: LatestAttempt) -> None:
        self.requests += attempt.requests
        self.retried += attempt.requests > 1
        self.cost_pico += attempt.cost_pico
        self.uncertain += attempt.uncertain
        self.uncertain_pico += attempt.uncertain_pico
        self.prompt_tokens += attempt.prompt_tokens or 0
        self.completion_tokens += attempt.completion_tokens or 0
        if attempt.answered:
            provider = self.providers.setdefault(attempt.provider or "?", ProviderCounts())
            provider.answers += 1
            provider.completion_tokens += attempt.completion_tokens or 0
            provider.cost_pico += attempt.cost_pico


class RowCounter(Protocol):
    """Receives every row in prompt order."""

    def add(self, prompt_id: str, key: str, attempt: LatestAttempt | None, *, key_is_new: bool) -> None:
        """Count one row; ``key_is_new`` is false for a prompt that shares its key with an earlier one."""


def project(
    prompts: Path,
    builder: RequestBuilder,
    db: sqlite3.Connection,
    counters: Sequence[RowCounter],
    unsaved: Mapping[str, LatestAttempt],
) -> Iterator[bytes]:
    """Yield the lines of responses.jsonl, one for each prompt in prompt order, and give each row to ``counters``.

    ``unsaved``: by key, the answers that were received and that the ledger could not store.
    """
    seen: set[bytes] = set()
    for chunk in chunks(prompts, builder):
        stored = latest_attempts(db, [key for key, _ in chunk])
        stored |= {key: _replaced(stored[key], unsaved[key]) for key in stored.keys() & unsaved.keys()}
        attempts = {key: _with_policy(attempt, builder.provider) for key, attempt in stored.items()}
        for key, prompt in chunk:
            short = bytes.fromhex(key[:24])
            for counter in counters:
                counter.add(prompt.id, key, attempts.get(key), key_is_new=short not in seen)
            seen.add(short)
            yield line(prompt.id, key, attempts.get(key))


def _replaced(stored: LatestAttempt, received: LatestAttempt) -> LatestAttempt:
    """Put an answer in place of the request that the ledger has in flight, with the sums of earlier failures."""
    sums = ("cost_pico", "uncertain", "uncertain_pico")
    return received._replace(
        requests=stored.requests, **{name: getattr(stored, name) + getattr(received, name) for name in sums}
    )


def _with_policy(attempt: LatestAttempt, section: ProviderSection) -> LatestAttempt:
    """Apply today's `answers_as`, which is not part of any key, to an answer of any day."""
    if attempt.policy is not None or not attempt.answered or (why := other_model(attempt.model, section)) is None:
        return attempt
    return attempt._replace(policy=why)


_NOT_ASKED = {"kind": "not_asked", "message": "no request was sent: the budget or the run ended first"}


def line(prompt_id: str, key: str, attempt: LatestAttempt | None) -> bytes:
    """Return one row as JSON.

    The body's own text is copied: serializing it again would lose number forms, repeated keys and escapes.
    """
    if attempt is None:
        return _head(prompt_id, key, None, None, _NOT_ASKED) + b"null}"
    raw = payload(attempt.body) if attempt.body is not None else b""
    document = object_of(raw)
    error = None if attempt.answered else {"kind": attempt.kind or "unknown", "message": attempt.message or ""}
    head = _head(prompt_id, key, attempt, document, error)
    if document is not None:
        # in a document that parsed, a line break can only be white space between values: inside a text it is written \n
        return head + raw.replace(b"\n", b" ") + b"}"
    if not attempt.body:
        return head + b"null}"
    return head + b"null" + _RESPONSE_BASE64 + b'"' + base64.b64encode(attempt.body) + b'"}'


def object_of(raw: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; return None for anything else."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _head(
    prompt_id: str,
    key: str,
    attempt: LatestAttempt | None,
    document: dict[str, Any] | None,
    error: dict[str, str] | None,
) -> bytes:
    cost_known = attempt is not None and not (attempt.uncertain and not attempt.cost_pico)
    row = {
        "id": prompt_id,
        "key": key,
        "provider": attempt.provider if attempt else None,
        "model": attempt.model if attempt else None,
        "attempts": attempt.requests if attempt else 0,
        "cost_usd": to_usd(attempt.cost_pico) if attempt and cost_known else None,
        "usage": document.get("usage") if document and isinstance(document.get("usage"), dict) else None,
        "error": error,
        "policy": attempt.policy if attempt else None,
    }
    return orjson.dumps(row)[:-1] + RESPONSE
