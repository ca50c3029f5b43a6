"""`store verify`: check the ledger's file, and every answer against its digest."""

import hashlib
import sqlite3
from typing import NamedTuple

from pipeline.stages.generate.ledger.queries import iterate_answers, keys_without_body


class Verification(NamedTuple):
    """Result of a check."""

    answers: int
    """Answers that were read."""
    faults: list[str]


def verify(db: sqlite3.Connection) -> Verification:
    """Check the file's structure, that no answer's body is missing, and every body's bytes."""
    faults = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
    faults += [f"answer {key}: its body is missing" for key in keys_without_body(db)]
    answers = 0
    for key, digest, body in iterate_answers(db):
        answers += 1
        if hashlib.sha256(body).digest() != digest:
            faults.append(f"answer {key}: its bytes differ from those that were received")
    return Verification(answers, faults)
