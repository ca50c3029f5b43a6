"""What the stage writes: responses.jsonl and its summary, both out of the ledger, and again only when they would differ."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import orjson

from pipeline.artifacts import read_bytes, remove_leftovers, sha256_file, to_json, write_bytes, write_jsonl
from pipeline.generate import ledger
from pipeline.generate.config import ProviderSection, SamplingSection
from pipeline.generate.policy import Admission, admit, parse_endpoints
from pipeline.generate.projection import Totals, project
from pipeline.generate.report import summary_of
from pipeline.generate.request import Asker
from pipeline.generate.survey import Survey, survey


class Outputs:
    """A dataset's two files, and the ledger that they come from."""

    def __init__(
        self, sampling: SamplingSection, provider: ProviderSection, asker: Asker, db: sqlite3.Connection, *, prompts: Path, responses: Path, summary: Path
    ) -> None:
        self.sampling = sampling
        self.provider = provider
        self.asker = asker
        self.db = db
        self.prompts = prompts
        self.responses = responses
        self.summary = summary
        self.dataset = responses.parent.name
        for path in (responses, summary):  # the store's lock makes this the only writer
            remove_leftovers(path.parent, path.name)
        self._recorded = self._read_record()
        self._ours = self._recorded is not None and responses.exists() and self._is_as_written(*self._recorded[1:3])

    @property
    def purse(self) -> str:
        """Which money is spent: the stand-in's is only counted, a provider's is real."""
        return "pretend" if self.provider.kind == "embedded" else "real"

    def spending(self) -> tuple[ledger.Spending, ledger.Spending]:
        """What counts against the caps by now: this dataset's, and all datasets'."""
        return ledger.spending(self.db, self.purse, self.dataset), ledger.spending(self.db, self.purse)

    def responses_from_elsewhere(self) -> bool:
        """Whether a responses.jsonl is there that this ledger did not write."""
        return self.responses.exists() and not self._ours

    def refresh(self, before: Survey) -> None:
        """Write both files, unless they hold already what they would."""
        if self._recorded is None or not self._ours or self._recorded[0] != self._plan(before.digest):
            self.write()
        elif not self.summary.exists() or read_bytes(self.summary) != self._recorded[3]:
            write_bytes(self.summary, self._recorded[3])

    def write(self) -> None:
        """Write both files out of the ledger."""
        totals = Totals()
        write_jsonl(self.responses, project(self.prompts, self.asker, self.db, self.provider, totals))
        after = survey(self.prompts, self.asker, self.db, self.sampling.most_tokens) if totals.answered < totals.prompts else None
        text = to_json(summary_of(totals, self._admission(), after), indent=True) + b"\n"
        write_bytes(self.summary, text)
        row = (str(self.responses.absolute()), self._plan(totals.digest.hexdigest()), _stat(self.responses), sha256_file(self.responses), text)
        self.db.execute("INSERT OR REPLACE INTO projections(path, plan, stat, sha256, summary) VALUES(?, ?, ?, ?, ?)", row)

    def remember_endpoints(self, document: Any) -> None:
        """Keep the provider's list, so that a run with nothing to ask still writes it."""
        if document is not None:
            row = (self._server(), orjson.dumps(document), time.time())
            self.db.execute("INSERT OR REPLACE INTO endpoints(server, document, fetched_at) VALUES(?, ?, ?)", row)

    def _admission(self) -> Admission | None:
        row = self.db.execute("SELECT document FROM endpoints WHERE server=?", (self._server(),)).fetchone()
        if row is None:
            return None
        return admit(parse_endpoints(orjson.loads(row[0])), self.provider, needs=self.asker.parameters(), max_tokens=self.sampling.max_tokens)

    def _server(self) -> str:
        return orjson.dumps([self.provider.kind, self.asker.identity or self.provider.base_url, self.provider.model]).decode()

    def _plan(self, digest: str) -> str:
        """What decides the two files besides the answers: today's policy words, and the form of the files."""
        return orjson.dumps([1, digest, sorted(self.provider.answers_as), self.provider.max_price.model_dump()]).decode()

    def _is_as_written(self, stat: str, sha256: str) -> bool:
        """Whether the file is the one that was written: by its stat, or, where DVC has put a link or a copy in its place, by its bytes."""
        if _stat(self.responses) == stat:
            return True
        if sha256_file(self.responses) != sha256:
            return False
        self.db.execute("UPDATE projections SET stat=? WHERE path=?", (_stat(self.responses), str(self.responses.absolute())))
        return True

    def _read_record(self) -> tuple[str, str, str, bytes] | None:
        row = self.db.execute("SELECT plan, stat, sha256, summary FROM projections WHERE path=?", (str(self.responses.absolute()),)).fetchone()
        return None if row is None else (row[0], row[1], row[2], row[3])


def _stat(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
