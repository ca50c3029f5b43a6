"""What a dataset asks for before anything is sent: how many answers the ledger has, how many are new, and what those can cost."""

import hashlib
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from pipeline.stages.generate.ledger.ledger import settled
from pipeline.stages.generate.limits.money import Price, most_prompt_tokens
from pipeline.stages.generate.requests.prompt_source import chunks, plan_row
from pipeline.stages.generate.requests.request import Asker


@dataclass(frozen=True, slots=True)
class Survey:
    """A dataset against the ledger."""

    prompts: int
    cached: int
    """Prompts that the ledger has settled, or that are answered elsewhere."""
    new: int
    """Requests to send: different keys that nothing has settled."""
    prompt_bytes: int
    """Size of the new prompts, in bytes of JSON."""
    most_prompt_tokens: int
    most_completion_tokens: int
    asked: bytes
    """1 for each prompt to be asked, 0 for one that is settled, or shares its key with one before it."""
    digest: str
    """Of every prompt's id, key and answer: equal digests give equal responses.jsonl."""

    def worst_case(self, price: Price) -> int:
        """Most that the new requests can cost, each sent once, in picodollars."""
        return (
            self.new * price.request
            + self.most_prompt_tokens * price.prompt
            + self.most_completion_tokens * price.completion
        )


def survey(
    prompts: Path, asker: Asker, db: sqlite3.Connection | None, most_tokens: int, *, elsewhere: Collection[str] = ()
) -> Survey:
    """Look up every prompt. Without a ledger everything is new, but for the keys that are answered ``elsewhere``."""
    digest = hashlib.sha256()
    cached = size = most = 0
    asked = bytearray()
    new: set[bytes] = set()
    for chunk in chunks(prompts, asker):
        known = settled(db, [key for key, _ in chunk]) if db is not None else {}
        for key, prompt in chunk:
            cached += key in known or key in elsewhere
            digest.update(plan_row(prompt.id, key, known.get(key, 0)))
            ask = key not in known and key not in elsewhere and (short := bytes.fromhex(key[:24])) not in new
            asked.append(ask)
            if ask:
                new.add(short)
                length = asker.content_size(prompt)
                size += length
                most += most_prompt_tokens(length, len(prompt.messages))
    return Survey(len(asked), cached, len(new), size, most, len(new) * most_tokens, bytes(asked), digest.hexdigest())
