"""A bench for the stage: a dataset's folder, its own ledger, and a server that follows a script."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.formats.schema.responses import ResponseRow
from pipeline.stages.generate.ledger.connection import opened
from pipeline.stages.generate.stage import Config
from tests.stages.generate.chat_server import ChatServer
from tests.stages.generate.child import run_in


@dataclass
class Bench:
    """Runs the stage against a server, as the build does."""

    folder: Path
    server: ChatServer
    provider: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    dataset_budget: dict[str, Any] = field(default_factory=dict)
    budget: dict[str, Any] = field(default_factory=dict)
    send_tools: bool = False
    dataset: str = "some"

    def config(self) -> Config:
        retry = {"base": 0.01, "max_wait": 0.05, **self.provider.get("retry", {})}
        provider = {
            "kind": "openrouter",
            "base_url": self.server.url,
            "model": "m",
            "concurrency": 4,
            **self.provider,
            "retry": retry,
        }
        sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 100, "seed": 0, **self.sampling}
        return Config.model_validate(
            {
                "sampling": sampling,
                "send_tools": self.send_tools,
                "dataset_budget": self.dataset_budget,
                "budget": self.budget,
                "provider": provider,
            }
        )

    @property
    def build(self) -> Path:
        return self.folder / "build" / self.dataset

    def ask(self, *texts: str) -> list[dict[str, Any]]:
        """Write prompts, run the stage, return the rows."""
        self.write(*texts)
        return self.run()

    def write(self, *texts: str) -> None:
        self.build.mkdir(parents=True, exist_ok=True)
        rows = [
            {"id": f"p{number}", "messages": [{"role": "user", "content": text}], "tools": None}
            for number, text in enumerate(texts)
        ]
        (self.build / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(self) -> list[dict[str, Any]]:
        run_in(self.build, self.config())
        return self.rows()

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of responses.jsonl, each checked against its schema."""
        rows = [json.loads(line) for line in (self.build / "responses.jsonl").read_bytes().split(b"\n") if line]
        for row in rows:
            ResponseRow.model_validate(row)
        return rows

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.build / "generate.json").read_text())
        return found

    def attempts(self) -> list[dict[str, Any]]:
        """Return every row of the ledger's view `attempts`."""
        with opened(self.folder / "store", readonly=True) as db:
            cursor = db.execute("SELECT * FROM attempts ORDER BY id")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("AERIE_STORE", str(tmp_path / "store"))
    with ChatServer() as server:
        yield Bench(tmp_path, server)
