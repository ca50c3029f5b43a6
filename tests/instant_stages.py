"""A workspace whose stages only write digests of their inputs: instant and deterministic, with real artifacts.

With it, tests of versions, sweeps and merges run DVC itself. It has only two datasets, code and tools: DVC rewrites the
whole dvc.lock after each stage, which is most of a build's cost here. Each stage records its run in the file that
INSTANT_LOG names, so that runs in an experiment's own copy are counted too. `train` fails if lr is above 1.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline.graph import STAGES, Stage
from tests.workspace import Workspace, copy_of_repository

LOG = "INSTANT_LOG"

_SHARED = '''"""Helpers of the instant stages."""
import hashlib
import os

import orjson

from pipeline.core.files.atomic import write_bytes
from pipeline.core.files.digests import sha256_file, sha256_folder
from pipeline.core.files.json_file import write_json
from pipeline.core.files.jsonl import read_jsonl, write_jsonl
from pipeline.core.errors import InputError


def note(stage, paths):
    if log := os.environ.get("INSTANT_LOG"):
        dataset = next((path.parts[1] for path in paths.values() if hasattr(path, "parts") and len(path.parts) > 2), "")
        with open(log, "a") as file:
            file.write(f"{stage} {dataset}\\n")


def digest(config, reads, aside):
    found = hashlib.sha256(orjson.dumps(config.model_dump(mode="json", exclude=aside), option=orjson.OPT_SORT_KEYS))
    for path in reads:
        for one in path.values() if isinstance(path, dict) else [path]:
            found.update((sha256_folder(one) if one.is_dir() else sha256_file(one)).encode())
    return found.hexdigest()


def write_any(path, found):
    if path.name == "eval.json":
        write_json(path, {"acceptance_length": 1 + int(found[:4], 16) / 65536, "draft_tokens": 4, "prompts": 10})
    elif path.suffix == ".json":
        write_json(path, {"digest": found})
    elif path.suffix:
        write_bytes(path, f"step,loss\\n1,{found}\\n".encode())
    else:
        write_bytes(path / "file", found.encode())
'''

_GENERIC = """    for path in ({writes}):
        write_any(path, found)
"""

_BODIES = {
    "prompts": """    source = [row for _, row in read_jsonl(data_of(prompts))][: config.prompts["limit"]]
    rows = [{"id": row["id"], "messages": row["messages"]} for row in source]
    write_jsonl(prompts, rows)
    write_json(summary, {"prompts": len(rows)})
""",
    "generate": """    rows = []
    for _, row in read_jsonl(prompts):
        key = hashlib.sha256(orjson.dumps([row, config.sampling])).hexdigest()
        provider = "north" if int(key, 16) % 2 else "south"
        rows.append({"id": row["id"], "key": key, "cost_usd": 0.001, "provider": provider, "response": key})
    write_jsonl(responses, rows)
    cost_usd = round(0.001 * len(rows), 6)
    write_json(summary, {"rows": len(rows), "cost_usd": cost_usd, "completion_tokens": 32 * len(rows)})
    write_jsonl(timings, [{name: row[name] for name in ("id", "key", "provider")} | {"seconds": 1.0} for row in rows])
    write_any(timings_summary, found)
""",
    "reconstruct": """    import pyarrow as pa

    from pipeline.core.files.tables import write_batches
    from pipeline.formats.schema.tokens import SCHEMA, Segment, TokenRow

    rows = []
    for _, row in read_jsonl(responses):
        ids = [int(row["key"][at : at + 2], 16) for at in range(0, 64, 2)]
        segments = [Segment("content", 0, 31), Segment("end", 31, 32)]
        evidence = "count" if ids[0] % 2 else "text"
        provider = row["provider"]
        made = TokenRow(row["id"], [1, 2, 3], ids, evidence, 0, 32, "stop", provider, segments, [], "accept")
        rows.append(made.to_row())
    write_batches(tokens, SCHEMA, [pa.RecordBatch.from_pylist(rows, schema=SCHEMA)])
    write_json(summary, {"rows": len(rows)})
""",
    "target": """    from pipeline.formats.schema.target import TargetSpec
    from pipeline.model.special_tokens import make_record
    from pipeline.model.tokenizer.loading import load_tokenizer

    fields = {key: value for key, value in config.target.items() if key in TargetSpec.model_fields}
    spec = TargetSpec.model_validate(fields)
    write_json(record, make_record(spec, load_tokenizer(spec)))
    write_any(model, found)
    write_any(metrics, found)
""",
    "train": """    if config.train["lr"] > 1:
        raise InputError("the training diverged")
"""
    + _GENERIC,
}


def _source(stage: Stage) -> str:
    fields = "".join(f"    {key}: Any\n" for key in {**stage.keys, **stage.aside}) or "    pass\n"
    arguments = ", ".join([*stage.reads, *stage.writes])
    body = _BODIES.get(stage.name, _GENERIC).replace("{writes}", "".join(f"{name}, " for name in stage.writes))
    return f'''"""An instant stage."""
import hashlib
from pathlib import Path
from typing import Any

import orjson

from pipeline.core.sections import Section
from pipeline.instant import InputError, digest, note, read_jsonl, write_any, write_json, write_jsonl


class Config(Section):
{fields}

def data_of(prompts):
    return Path("data") / f"{{prompts.parts[1]}}.jsonl"


def run(config, *, {arguments}):
    note("{stage.name}", {{{", ".join(f'"{name}": {name}' for name in stage.writes)}}})
    found = digest(config, [{", ".join(stage.reads)}], {set(stage.aside)!r})
{body}'''


@dataclass(frozen=True)
class InstantBuild(Workspace):
    """A workspace that records the stages that ran."""

    def environment(self) -> dict[str, str]:
        return {**super().environment(), LOG: str(self.log)}

    @property
    def log(self) -> Path:
        return self.root.parent / f"{self.root.name}.runs"

    def copy(self, to: Path) -> "InstantBuild":
        """Copy the whole workspace with its history and cache."""
        shutil.copytree(self.root, to, symlinks=True)
        return InstantBuild(to)

    def runs(self) -> list[str]:
        """Return the stages that ran since the last call, as `stage dataset`, those in experiments' copies included."""
        lines = self.log.read_text().split("\n")[:-1] if self.log.exists() else []
        self.log.write_text("")
        return [line.strip() for line in lines]


def instant_stages(root: Path, *, rows: int = 6) -> InstantBuild:
    """Make a workspace of instant stages in the folder ``root``, committed but not built."""
    copy_of_repository(root)
    workspace = InstantBuild(root)
    workspace.write("pipeline/instant.py", _SHARED)
    for stage in STAGES:
        workspace.write(f"pipeline/stages/{stage.name}/__init__.py", "")
        workspace.write(f"pipeline/stages/{stage.name}/stage.py", _source(stage))
    workspace.replace("params.yaml", "- reasoning\n", "")
    for name in ("tools", "code", "heldout"):
        lines = [
            f'{{"id":"{name}-{n}","messages":[{{"role":"user","content":"question {n}"}}]}}\n' for n in range(rows)
        ]
        workspace.write(f"data/{name}.jsonl", "".join(lines))
    workspace.python("compose")
    workspace.run("git", "add", "-A")
    workspace.run("git", "commit", "-qm", "instant stages")
    return workspace


def built(root: Path, *, rows: int = 6) -> InstantBuild:
    """Make a workspace of instant stages, built and committed."""
    workspace = instant_stages(root, rows=rows)
    workspace.run("dvc", "repro", "-q")
    workspace.run("git", "add", "-A")
    workspace.run("git", "commit", "-qm", "build")
    workspace.runs()
    return workspace
