"""The stage's files: responses.jsonl, timings.jsonl and their summaries, written from the ledger."""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import orjson

from pipeline.core.files.atomic import remove_leftovers, write_bytes, writing
from pipeline.core.files.contents import read_bytes
from pipeline.core.files.digests import sha256_file
from pipeline.core.files.json_file import to_json
from pipeline.core.files.jsonl import write_jsonl
from pipeline.formats.schema.responses import GenerateSummary
from pipeline.stages.generate.config import BudgetSection
from pipeline.stages.generate.ledger.accounts import charged, largest_excesses
from pipeline.stages.generate.ledger.notes import (
    WrittenFile,
    remember_endpoints,
    remember_file,
    remember_stat,
    remembered_endpoints,
    written_file,
)
from pipeline.stages.generate.ledger.records import NO_CHARGE, Charge, LatestAttempt
from pipeline.stages.generate.limits.budget import Cap
from pipeline.stages.generate.limits.money import price_of
from pipeline.stages.generate.output.projection import Totals, project
from pipeline.stages.generate.output.report import summary_of
from pipeline.stages.generate.output.timing import TimingsWriter
from pipeline.stages.generate.provider.policy import Admission, admit, other_provider, parse_endpoints
from pipeline.stages.generate.requests.request import RequestBuilder
from pipeline.stages.generate.requests.survey import Survey, survey

_FORM = 3
"""Version of the files' form; a new one makes every dataset's files be written again."""

NOTHING_UNSAVED: Mapping[str, LatestAttempt] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OutputFiles:
    """Paths of a dataset's files."""

    responses: Path
    summary: Path
    timings: Path
    timings_summary: Path

    @property
    def dataset(self) -> str:
        """Name of the dataset, which its folder has too."""
        return self.responses.parent.name

    def pairs(self) -> tuple[tuple[Path, Path], tuple[Path, Path]]:
        """Return each data file with its summary."""
        return (self.responses, self.summary), (self.timings, self.timings_summary)


class GenerateOutputs:
    """A dataset's files, and the ledger from which they are written."""

    def __init__(self, builder: RequestBuilder, db: sqlite3.Connection, *, prompts: Path, files: OutputFiles) -> None:
        self.builder = builder
        self.db = db
        self.prompts = prompts
        self.files = files
        self.dataset = files.dataset
        for path in (path for pair in files.pairs() for path in pair):  # the ledger's lock makes this the only writer
            remove_leftovers(path.parent, path.name)
        self._notes = {data: written_file(db, data) for data, _ in files.pairs()}
        self._unchanged = {
            path: note is not None and path.exists() and self._is_as_written(path, note)
            for path, note in self._notes.items()
        }

    @property
    def purse(self) -> str:
        """Account that pays: pretend money for the stand-in, real money for a provider."""
        return "pretend" if self.builder.provider.kind == "embedded" else "real"

    def caps(self, dataset: BudgetSection, build: BudgetSection) -> tuple[Cap, Cap]:
        """Return the caps of this dataset and of all datasets, with what counts against them by now."""
        return (
            Cap("dataset budget", dataset, *charged(self.db, self.purse, self.dataset)),
            Cap("build budget", build, *charged(self.db, self.purse)),
        )

    def known_excess(self, admission: Admission) -> Charge:
        """Return the most that a provider which may answer now was billed beyond a reservation in earlier runs."""
        provider, most = self.builder.provider, NO_CHARGE
        excesses = largest_excesses(self.db, self.purse, self.dataset, provider.model)
        for name, excess in excesses.items():
            if name is None or other_provider(name, provider, admission.admitted) is None:
                most = most.most(excess)
        return Charge(max(most.pico, most.tokens * admission.price.completion), most.tokens)

    def responses_from_elsewhere(self) -> bool:
        """Return whether there is a responses.jsonl that this ledger did not write."""
        return self.files.responses.exists() and not self._unchanged[self.files.responses]

    def refresh(self, before: Survey) -> None:
        """Write the files, unless they would stay the same."""
        plan = self._plan(before.digest)
        notes = [note for note in self._notes.values() if note is not None and note.plan == plan]
        if not all(self._unchanged.values()) or len(notes) < len(self._notes):
            self.write()
            return
        for (_, summary), note in zip(self.files.pairs(), notes, strict=True):
            if not summary.exists() or read_bytes(summary) != note.summary:
                write_bytes(summary, note.summary)

    def write(self, unsaved: Mapping[str, LatestAttempt] = NOTHING_UNSAVED) -> GenerateSummary:
        """Write all files from the ledger, and the answers that it could not store; return the summary."""
        totals = Totals()
        with writing(self.files.timings) as file:
            timings = TimingsWriter(file)
            rows = project(self.prompts, self.builder, self.db, (totals, timings), unsaved)
            write_jsonl(self.files.responses, rows)
        after = survey(self.prompts, self.builder, self.db) if totals.answered < totals.prompts else None
        provider = self.builder.provider
        price = price_of(provider.max_price) if provider.kind == "openai" else None
        summary = summary_of(totals, self._admission(), after, price)
        plan = self._plan(totals.digest.hexdigest())
        for (data, summary_file), content in zip(self.files.pairs(), (summary, timings.summary()), strict=True):
            text = to_json(content, indent=True) + b"\n"
            write_bytes(summary_file, text)
            if not unsaved:  # without a note, the next run takes the answers in responses.jsonl into the ledger
                remember_file(
                    self.db, WrittenFile(str(data.absolute()), plan, _stat_text(data), sha256_file(data), text)
                )
        return summary

    def remember_endpoints(self, document: Any) -> None:
        """Keep the provider's list, if it has one, so that a run that asks nothing can still write it."""
        if document is not None:
            remember_endpoints(self.db, self._server(), document)

    def _admission(self) -> Admission | None:
        document = remembered_endpoints(self.db, self._server())
        if document is None:
            return None
        return admit(
            parse_endpoints(document),
            self.builder.provider,
            needs=self.builder.parameters(),
            max_tokens=self.builder.most_tokens,
        )

    def _server(self) -> str:
        provider = self.builder.provider
        return orjson.dumps([provider.kind, self.builder.identity or provider.base_url, provider.model]).decode()

    def _plan(self, digest: str) -> str:
        """Return everything that decides the files besides the answers: `answers_as`, the prices, and the form."""
        provider = self.builder.provider
        return orjson.dumps([_FORM, digest, sorted(provider.answers_as), provider.max_price.model_dump()]).decode()

    def _is_as_written(self, path: Path, note: WrittenFile) -> bool:
        """Return whether a file is as it was written.

        Its stat decides, or, where DVC has put a link or a copy in its place, its bytes.
        """
        if _stat_text(path) == note.stat:
            return True
        if sha256_file(path) != note.sha256:
            return False
        remember_stat(self.db, path, _stat_text(path))
        return True


def _stat_text(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
