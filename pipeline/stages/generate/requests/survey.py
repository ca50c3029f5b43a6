"""Counts of a dataset's answered and new prompts, and the cost of the new ones."""

import hashlib
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pipeline.stages.generate.ledger.queries import settled_keys
from pipeline.stages.generate.limits.money import Price, most_prompt_tokens
from pipeline.stages.generate.requests.prompt_source import chunks, plan_row
from pipeline.stages.generate.requests.request import RequestBuilder


@dataclass(frozen=True, slots=True)
class Survey:
    """Counts of a dataset's prompts."""

    prompts: int
    cached: int
    """Prompts that the ledger has settled, or that have an answer elsewhere."""
    new: int
    """Requests to send: distinct keys that are not settled."""
    prompt_bytes: int
    """Size of the new prompts, in bytes of JSON."""
    most_prompt_tokens: int
    most_completion_tokens: int
    asked: bytes
    """1 for each prompt to ask, 0 for one that is settled or shares its key with an earlier prompt."""
    digest: str
    """Digest of every prompt's id, key and answer: equal digests give equal responses.jsonl."""

    def worst_case(self, price: Price) -> int:
        """Return the most that the new requests can cost, each sent once, in picodollars."""
        return (
            self.new * price.request
            + self.most_prompt_tokens * price.prompt
            + self.most_completion_tokens * price.completion
        )


def survey(
    prompts: Path, builder: RequestBuilder, db: sqlite3.Connection, *, elsewhere: Collection[str] = ()
) -> Survey:
    """Look up every prompt in the ledger. Keys in ``elsewhere`` count as answered too."""
    digest = hashlib.sha256()
    cached = prompt_bytes = prompt_tokens = 0
    asked = bytearray()
    new: set[bytes] = set()
    for chunk in chunks(prompts, builder):
        settled = settled_keys(db, [key for key, _ in chunk])
        for key, prompt in chunk:
            cached += key in settled or key in elsewhere
            digest.update(plan_row(prompt.id, key, settled.get(key, 0)))
            ask = key not in settled and key not in elsewhere and (short := bytes.fromhex(key[:24])) not in new
            asked.append(ask)
            if ask:
                new.add(short)
                length = builder.content_size(prompt)
                prompt_bytes += length
                prompt_tokens += most_prompt_tokens(length, len(prompt.messages))
    return Survey(
        prompts=len(asked),
        cached=cached,
        new=len(new),
        prompt_bytes=prompt_bytes,
        most_prompt_tokens=prompt_tokens,
        most_completion_tokens=len(new) * builder.most_tokens,
        asked=bytes(asked),
        digest=digest.hexdigest(),
    )
