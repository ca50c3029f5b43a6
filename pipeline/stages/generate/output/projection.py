"""responses.jsonl out of the ledger."""

import base64
import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from pipeline.stages.generate.config import ProviderSection
from pipeline.stages.generate.ledger.ledger import Attempt, outcomes
from pipeline.stages.generate.limits.money import to_usd
from pipeline.stages.generate.output.timing import Clock
from pipeline.stages.generate.provider.classify import payload
from pipeline.stages.generate.provider.policy import other_model
from pipeline.stages.generate.requests.prompt_source import chunks, plan_row
from pipeline.stages.generate.requests.request import Asker

RESPONSE = b',"response":'
_RESPONSE_BASE64 = b',"response_base64":'


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
    providers: dict[str, list[int]] = field(default_factory=dict)
    """Name to answers, completion tokens, picodollars."""

    digest: Any = field(default_factory=hashlib.sha256)
    """As `Survey.digest`."""

    def add(self, prompt_id: str, key: str, found: Attempt | None, *, key_is_new: bool) -> None:
        """Count a row; money of a key that several prompts share is counted once."""
        self.prompts += 1
        self.digest.update(plan_row(prompt_id, key, found.id if found is not None and found.settled else 0))
        if found is None:
            self.not_asked += 1
            return
        if found.answered:
            self.answered += 1
            self.outside_policy += found.policy is not None
        else:
            self.failed[found.kind or "unknown"] += 1
        if key_is_new:
            self._add_key(found)

    def _add_key(self, found: Attempt) -> None:
        self.requests += found.requests
        self.retried += found.requests > 1
        self.cost_pico += found.cost_pico
        self.uncertain += found.uncertain
        self.uncertain_pico += found.uncertain_pico
        self.prompt_tokens += found.prompt_tokens or 0
        self.completion_tokens += found.completion_tokens or 0
        if found.answered:
            counts = self.providers.setdefault(found.provider or "?", [0, 0, 0])
            for place, amount in enumerate((1, found.completion_tokens or 0, found.cost_pico)):
                counts[place] += amount


def project(
    prompts: Path,
    asker: Asker,
    db: sqlite3.Connection,
    section: ProviderSection,
    totals: Totals,
    clock: Clock,
    unsaved: Mapping[str, Attempt],
) -> Iterator[bytes]:
    """Lines of responses.jsonl, one a prompt, in prompt order; ``totals`` and ``clock`` are filled on the way. ``unsaved`` is what came and the ledger lacks, by key."""
    seen: set[bytes] = set()
    for chunk in chunks(prompts, asker):
        known = outcomes(db, [key for key, _ in chunk])
        known |= {key: _instead(known[key], unsaved[key]) for key in known.keys() & unsaved.keys()}
        found = {key: _judged(attempt, section) for key, attempt in known.items()}
        for key, prompt in chunk:
            short = bytes.fromhex(key[:24])
            for counted in (totals, clock):
                counted.add(prompt.id, key, found.get(key), key_is_new=short not in seen)
            seen.add(short)
            yield line(prompt.id, key, found.get(key))


def _instead(known: Attempt, came: Attempt) -> Attempt:
    """What came, in place of the request that the ledger still takes for one in flight, and of failures before it."""
    counts = ("cost_pico", "uncertain", "uncertain_pico")
    return came._replace(
        requests=known.requests, **{name: getattr(known, name) + getattr(came, name) for name in counts}
    )


def _judged(found: Attempt, section: ProviderSection) -> Attempt:
    """Apply today's `answers_as`, which is in no key, to an answer of any day."""
    if found.policy is not None or (other := other_model(found.model, section)) is None or not found.answered:
        return found
    return found._replace(policy=other)


def line(prompt_id: str, key: str, found: Attempt | None) -> bytes:
    """One row as JSON. The body's own text is copied in, since writing it anew would lose number forms, repeated keys and escapes."""
    if found is None:
        return (
            _head(
                prompt_id,
                key,
                None,
                None,
                {"kind": "not_asked", "message": "no request was sent: the budget or the run ended first"},
            )
            + b"null}"
        )
    raw = payload(found.body) if found.body is not None else b""
    document = object_of(raw)
    error = None if found.answered else {"kind": found.kind or "unknown", "message": found.message or ""}
    head = _head(prompt_id, key, found, document, error)
    if document is not None:
        # a line break can only be white space between the values of a document that parsed: within a text it is written \n
        return head + raw.replace(b"\n", b" ") + b"}"
    if not found.body:
        return head + b"null}"
    return head + b"null" + _RESPONSE_BASE64 + b'"' + base64.b64encode(found.body) + b'"}'


def object_of(raw: bytes) -> dict[str, Any] | None:
    """Parse a JSON object; None for anything else."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _head(
    prompt_id: str, key: str, found: Attempt | None, document: dict[str, Any] | None, error: dict[str, str] | None
) -> bytes:
    row = {
        "id": prompt_id,
        "key": key,
        "provider": found.provider if found else None,
        "model": found.model if found else None,
        "attempts": found.requests if found else 0,
        "cost_usd": None if found is None or (found.uncertain and not found.cost_pico) else to_usd(found.cost_pico),
        "usage": document.get("usage") if document and isinstance(document.get("usage"), dict) else None,
        "error": error,
        "policy": found.policy if found else None,
    }
    return orjson.dumps(row)[:-1] + RESPONSE
