"""Stage prompts: a dataset's source to one checked prompt a line, in the order of the source."""

import hashlib
import heapq
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.core.errors import InputError
from pipeline.core.files.digests import sha256_file
from pipeline.core.files.json_file import write_json
from pipeline.core.files.jsonl import write_jsonl
from pipeline.core.sections import Section
from pipeline.formats.schema.prompts import Prompt, PromptsSummary
from pipeline.formats.schema.target import ChatFormat
from pipeline.model.format_rules import check_format
from pipeline.stages.prompts.config import ColumnsSection, PromptsSection
from pipeline.stages.prompts.prompt_rows import content_hash, to_prompt
from pipeline.stages.prompts.source_rows import Located, open_source

_MOST_NAMES = 50
"""Number of unused columns that are counted by name; the others are counted together, as "..."."""


class Config(Section):
    """Config of the stage."""

    prompts: PromptsSection
    send_tools: bool
    """Whether requests carry the prompts' tools."""
    chat: ChatFormat
    """The target's chat format, whose template must render all of a prompt."""
    digest: str | None
    """sha256 of the source file when `compose` ran, by which DVC sees that the file changed. Null for a hub dataset."""


def run(config: Config, *, prompts: Path, summary: Path) -> None:
    """Write the prompts and their summary.

    Raises:
        InputError: the source is missing, malformed or empty, changed since `compose`, or uses an id for two prompts.

    """
    section = config.prompts
    _check_digest(section, config.digest)
    tally = _Tally()
    rows = tally.deduplicated(open_source(section), config)
    kept = tally.taken(rows, section)
    write_jsonl(prompts, (prompt.model_dump() for prompt in kept))
    write_json(summary, tally.summary())
    if tally.unused:
        named = ", ".join(f"{name!r} (in {count})" for name, count in sorted(tally.unused.items()))
        print(
            f"prompts: {section.path}: of {tally.rows} rows these columns are not used: {named}; prompts.columns names "
            "those that are",
            file=sys.stderr,
        )


def _check_digest(section: PromptsSection, digest: str | None) -> None:
    if section.path.startswith("hf://"):
        return
    path = Path(section.path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; prompts.path names one file, relative to the repository")
    if not path.is_file():
        raise InputError(
            f"{path}: this file does not exist; prompts.path in conf/dataset/ names it, relative to the repository"
        )
    if digest is None:
        return
    if (current := sha256_file(path)) != digest:
        raise InputError(
            f"{path}: changed since the configuration was composed (sha256 {current[:12]}, composed {digest[:12]}); "
            "run `dvc repro`"
        )


class _Tally:
    """The counts of the summary, taken while the rows pass through."""

    def __init__(self) -> None:
        self.rows = self.prompts = self.duplicates = self.unique = self.same_content = self.with_tools = 0
        self.turns: Counter[int] = Counter()
        self.unused: Counter[str] = Counter()

    def deduplicated(self, rows: Iterator[Located], config: Config) -> Iterator[tuple[bytes, Prompt]]:
        """Yield each prompt once, with the digest of its content; a repeated id must repeat its content."""
        section = config.prompts
        seen: dict[bytes, bytes] = {}
        for where, row in rows:
            self.rows += 1
            try:
                prompt = to_prompt(row, section.columns, drop_last_answer=section.drop_last_answer)
                check_format(config.chat, prompt.messages, prompt.tools if config.send_tools else None)
                digest = content_hash(prompt.messages, prompt.tools)[:16]
            except InputError as error:
                raise InputError(f"{where}: {error}") from None
            self._count_unused(row, section.columns)
            name = hashlib.blake2b(prompt.id.encode(), digest_size=16).digest()
            if name not in seen:
                seen[name] = digest
                yield digest, prompt
            elif seen[name] == digest:
                self.duplicates += 1
            else:
                raise InputError(
                    f"{where}: the id {prompt.id!r} was used before for another prompt; ids must be unique: rename it, "
                    "or leave ids out"
                )

    def _count_unused(self, row: dict[str, Any], columns: ColumnsSection) -> None:
        for name in row.keys() - set(columns.model_dump().values()):
            self.unused[name if name in self.unused or len(self.unused) < _MOST_NAMES else "..."] += 1

    def taken(self, prompts: Iterator[tuple[bytes, Prompt]], section: PromptsSection) -> Iterator[Prompt]:
        """Apply `sample` and `limit`, and count what is kept."""
        contents: set[bytes] = set()
        sampled = prompts if section.sample is None else _sample(prompts, section.sample, section.seed)
        for digest, prompt in sampled:
            if section.limit is not None and self.prompts >= section.limit:
                continue
            self.prompts += 1
            self.with_tools += prompt.tools is not None
            self.turns[len(prompt.messages)] += 1
            self.same_content += digest in contents
            contents.add(digest)
            yield prompt
        if self.prompts == 0:
            raise InputError(
                f"{section.path}: holds no prompt ({self.rows} rows read); a dataset needs at least one "
                "{'messages': [...]} row"
            )

    def summary(self) -> PromptsSummary:
        return PromptsSummary(
            rows=self.rows,
            prompts=self.prompts,
            duplicates=self.duplicates,
            left_out=self.rows - self.duplicates - self.prompts,
            same_content=self.same_content,
            with_tools=self.with_tools,
            unused={name: self.unused[name] for name in sorted(self.unused)},
            turns={str(turns): self.turns[turns] for turns in sorted(self.turns)},
        )


def _sample(prompts: Iterator[tuple[bytes, Prompt]], size: int, seed: int) -> Iterator[tuple[bytes, Prompt]]:
    """Keep the ``size`` prompts whose ids hash lowest with ``seed``; a growing source changes the sample little."""
    ranked = (
        (hashlib.blake2b(f"{seed}\0{item[1].id}".encode(), digest_size=8).digest(), number, item)
        for number, item in enumerate(prompts)
    )
    chosen = heapq.nsmallest(size, ranked, key=lambda entry: entry[:2])
    return (item for _rank, _number, item in sorted(chosen, key=lambda entry: entry[1]))
