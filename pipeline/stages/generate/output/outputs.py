"""What the stage writes: responses.jsonl, timings.jsonl and their summaries, all out of the ledger, and again only when they would differ."""

import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from pipeline.core.files.atomic import remove_leftovers, write_bytes, writing
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.digests import sha256_file
from pipeline.core.files.json_file import to_json
from pipeline.core.files.jsonl import write_jsonl
from pipeline.formats.schema.responses import GenerateSummary
from pipeline.stages.generate.config import ProviderSection, SamplingSection
from pipeline.stages.generate.ledger import ledger
from pipeline.stages.generate.limits.money import price_of
from pipeline.stages.generate.output.projection import Totals, project
from pipeline.stages.generate.output.report import summary_of
from pipeline.stages.generate.output.timing import Clock
from pipeline.stages.generate.provider.policy import Admission, admit, parse_endpoints
from pipeline.stages.generate.requests.request import Asker
from pipeline.stages.generate.requests.survey import Survey, survey


@dataclass(frozen=True, slots=True)
class Files:
    """Where a dataset's files are."""

    responses: Path
    summary: Path
    timings: Path
    timings_summary: Path


class Outputs:
    """A dataset's files, and the ledger that they come from."""

    def __init__(
        self,
        sampling: SamplingSection,
        provider: ProviderSection,
        asker: Asker,
        db: sqlite3.Connection,
        *,
        prompts: Path,
        files: Files,
    ) -> None:
        self.sampling = sampling
        self.provider = provider
        self.asker = asker
        self.db = db
        self.prompts = prompts
        self.files = files
        self.dataset = files.responses.parent.name
        for path in (
            files.responses,
            files.summary,
            files.timings,
            files.timings_summary,
        ):  # the store's lock makes this the only writer
            remove_leftovers(path.parent, path.name)
        self._recorded = {path: self._read_record(path) for path in (files.responses, files.timings)}
        self._ours = {
            path: record is not None and path.exists() and self._is_as_written(path, *record[1:3])
            for path, record in self._recorded.items()
        }

    @property
    def purse(self) -> str:
        """Which money is spent: the stand-in's is only counted, a provider's is real."""
        return "pretend" if self.provider.kind == "embedded" else "real"

    def spending(self) -> tuple[ledger.Spending, ledger.Spending]:
        """What counts against the caps by now: this dataset's, and all datasets'."""
        return ledger.spending(self.db, self.purse, self.dataset), ledger.spending(self.db, self.purse)

    def responses_from_elsewhere(self) -> bool:
        """Whether a responses.jsonl is there that this ledger did not write."""
        return self.files.responses.exists() and not self._ours[self.files.responses]

    def refresh(self, before: Survey) -> None:
        """Write the files, unless they hold already what they would."""
        plan = self._plan(before.digest)
        if not all(self._ours.values()) or any(
            record is None or record[0] != plan for record in self._recorded.values()
        ):
            self.write()
            return
        for path, record in zip((self.files.summary, self.files.timings_summary), self._recorded.values(), strict=True):
            if record is not None and (not path.exists() or read_bytes(path) != record[3]):
                write_bytes(path, record[3])

    def write(self, unsaved: Mapping[str, ledger.Attempt] | None = None) -> GenerateSummary:
        """Write all files out of the ledger, and what came that it had no room for; give the summary."""
        files, totals = self.files, Totals()
        with writing(files.timings) as timings:
            clock = Clock(timings)
            write_jsonl(
                files.responses, project(self.prompts, self.asker, self.db, self.provider, totals, clock, unsaved or {})
            )
        after = (
            survey(self.prompts, self.asker, self.db, self.sampling.max_tokens)
            if totals.answered < totals.prompts
            else None
        )
        plan = self._plan(totals.digest.hexdigest())
        found = summary_of(
            totals,
            self._admission(),
            after,
            price_of(self.provider.max_price) if self.provider.kind == "openai" else None,
        )
        for path, summary, content in (
            (files.responses, files.summary, found),
            (files.timings, files.timings_summary, clock.summary()),
        ):
            text = to_json(content, indent=True) + b"\n"
            write_bytes(summary, text)
            if (
                not unsaved
            ):  # else the next run takes responses.jsonl for another clone's, and what it holds into the ledger
                self._record(path, plan, text)
        return found

    def _record(self, path: Path, plan: str, text: bytes) -> None:
        """Remember which file was written, so that a later run need not write it again."""
        row = (str(path.absolute()), plan, _stat(path), sha256_file(path), text)
        ledger.keep_note(
            self.db, "INSERT OR REPLACE INTO projections(path, plan, stat, sha256, summary) VALUES(?, ?, ?, ?, ?)", row
        )

    def remember_endpoints(self, document: Any) -> None:
        """Keep the provider's list, so that a run with nothing to ask still writes it."""
        if document is not None:
            row = (self._server(), orjson.dumps(document), time.time())
            ledger.keep_note(
                self.db, "INSERT OR REPLACE INTO endpoints(server, document, fetched_at) VALUES(?, ?, ?)", row
            )

    def _admission(self) -> Admission | None:
        row = self.db.execute("SELECT document FROM endpoints WHERE server=?", (self._server(),)).fetchone()
        if row is None:
            return None
        return admit(
            parse_endpoints(orjson.loads(row[0])),
            self.provider,
            needs=self.asker.parameters(),
            max_tokens=self.sampling.max_tokens,
        )

    def _server(self) -> str:
        return orjson.dumps(
            [self.provider.kind, self.asker.identity or self.provider.base_url, self.provider.model]
        ).decode()

    def _plan(self, digest: str) -> str:
        """What decides the files besides the answers: today's policy words, and the form of the files."""
        return orjson.dumps(
            [3, digest, sorted(self.provider.answers_as), self.provider.max_price.model_dump()]
        ).decode()

    def _is_as_written(self, path: Path, stat: str, sha256: str) -> bool:
        """Whether the file is the one that was written: by its stat, or, where DVC has put a link or a copy in its place, by its bytes."""
        if _stat(path) == stat:
            return True
        if sha256_file(path) != sha256:
            return False
        ledger.keep_note(self.db, "UPDATE projections SET stat=? WHERE path=?", (_stat(path), str(path.absolute())))
        return True

    def _read_record(self, path: Path) -> tuple[str, str, str, bytes] | None:
        row = self.db.execute(
            "SELECT plan, stat, sha256, summary FROM projections WHERE path=?", (str(path.absolute()),)
        ).fetchone()
        return None if row is None else (row[0], row[1], row[2], row[3])


def _stat(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
