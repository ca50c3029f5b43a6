"""CPU seconds of each stage after `generate` for 100 prompts more than 10,000, beside a clean build of all 10,100.

    python -m benchmarks.versions_increment [--rows 10000] [--added 100] [--tokens 200] [--folder FOLDER [PHASE ...]]

Every figure is the user and system time of `python -m pipeline STAGE` as `dvc repro` runs it, start of the process
included. `fixed` is the same with a handful of rows: interpreter, imports, vocabulary, weights. What is above it is
called work. The target is a random model of the stand-in's size, so a real target's extraction weighs more than here,
never less. Phases may run one by one, in this order, with a folder that lasts: prepare, first, at_the_end, anywhere,
clean, added_alone, fixed, report.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.results import save

ROOT = Path(__file__).resolve().parent.parent
STAGES = ("reconstruct", "calibrate", "audit", "gate", "extract")
NAME = "bench"
FEW = 8
"""Rows of a build that does nothing worth the name but start."""
SOME = 0.3
"""CPU seconds of work below which no share of it is given."""
OUTS = ("tokens.parquet", "reconstruct.json", "calibration.json", "accepted.parquet", "audit", "hidden")
_OF_THE_CLOCK = "report.html"


def make_rows(count: int, tokens: int, seed: int) -> list[tuple[str, str]]:
    """Return lines of prompts.jsonl and responses.jsonl, a quarter to twice ``tokens`` long."""
    from pipeline.project.targets import open_target

    _, tokenizer = open_target("kimi_k25")
    text = "".join(
        path.read_text("utf-8", "ignore") for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    )
    rng, lines = Random(seed), []
    for number in range(count):
        size = rng.randrange(tokens, 8 * tokens)
        start, cut = rng.randrange(len(text) - size), rng.randrange(size // 4, size)
        name, reasoning, content = (
            f"row-{seed}-{number}",
            f"Row {number}. {text[start : start + cut]}",
            f"{text[start + cut : start + size]}.",
        )
        message = {"role": "assistant", "content": content, "reasoning": reasoning}
        billed = len(tokenizer.encode(reasoning)) + len(tokenizer.encode(content)) + 2
        body = {
            "provider": f"P{number % 3}",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"completion_tokens": billed},
        }
        prompt = {
            "id": name,
            "messages": [{"role": "user", "content": f"Question {seed} {number}: {text[start : start + 80]}"}],
            "tools": None,
        }
        response = {"id": name, "key": "k", "provider": body["provider"], "response": body}
        lines.append(tuple(json.dumps(line, separators=(",", ":")) for line in (prompt, response)))
    return lines  # type: ignore[return-value]


class Bench:
    """A build of one dataset in a folder of its own."""

    def __init__(self, folder: Path, rows: int, added: int, tokens: int) -> None:
        self.folder, self.work, self.store = folder, folder / "work", folder / "store"
        self.sizes = rows, added, tokens
        self.record = folder / "figures.json"
        self.figures: dict[str, Any] = json.loads(self.record.read_text()) if self.record.exists() else {}

    @property
    def build(self) -> Path:
        """Files of the dataset."""
        return self.work / "build" / NAME

    def prepare(self) -> None:
        """Write the config, the target's record, and a random model of the stand-in's size."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from pipeline.core.files.json_file import write_json
        from pipeline.project.targets import open_target

        config = json.loads((ROOT / "build/config.json").read_text())
        dataset = config["datasets"]["code"]
        dataset["sampling"]["max_tokens"] = 16 * self.sizes[2]  # no answer reaches it, so none is taken for a cut one
        config["datasets"] = {NAME: dataset}
        config["audit"]["gate"] = {"admit": [], "max_error_rate": 0.0, "min_accepted": 0}
        config |= {"names": [NAME], "inputs": {NAME: "", "evaluate": config["inputs"]["evaluate"]}}
        record, _ = open_target("kimi_k25")
        write_json(self.work / "build/config.json", config)
        write_json(self.work / "build/target/fingerprint.json", record)
        write_json(self.build / "generate.json", {"endpoints": []})
        (self.build / "timings.jsonl").write_text("")
        (self.work / "data").mkdir()
        shutil.copy(ROOT / config["evaluate"]["path"], self.work / config["evaluate"]["path"])
        torch.manual_seed(0)
        sizes = {
            "hidden_size": 96,
            "intermediate_size": 256,
            "num_hidden_layers": 7,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        }
        model = LlamaForCausalLM(LlamaConfig(vocab_size=record.vocab_size, tie_word_embeddings=True, **sizes))
        model.save_pretrained(self.work / "build/target/model")
        rows, added, tokens = self.sizes
        before, new = make_rows(rows, tokens, 0), make_rows(added, tokens, 1)
        scattered, rng = list(before), Random(2)
        for row in new:
            scattered.insert(rng.randrange(len(scattered) + 1), row)
        for name, lines in {
            "first": before,
            "at_the_end": [*before, *new],
            "anywhere": scattered,
            "added_alone": new,
            "fixed": new[:FEW],
        }.items():
            (self.folder / f"{name}.json").write_text(json.dumps(lines))

    def run(self, case: str, reuse: str = "64GiB") -> dict[str, float]:
        """Write a case's inputs, run the stages, and give the CPU seconds of each."""
        for name, lines in zip(
            ("prompts", "responses"),
            zip(*json.loads((self.folder / f"{case}.json").read_text()), strict=True),
            strict=True,
        ):
            (self.build / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))
        for out in OUTS:  # as DVC does before a stage runs
            shutil.rmtree(self.build / out, ignore_errors=True)
            (self.build / out).unlink(missing_ok=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTHONHASHSEED": "0",
            "AERIE_STORE": str(self.store),
            "AERIE_REUSE": reuse,
        }
        return {
            stage: cpu_of([sys.executable, "-m", "pipeline", stage, NAME], self.work, environment) for stage in STAGES
        }

    def first(self) -> None:
        """Build the version before, and keep its rows."""
        self.figures["first_and_keep"] = self.run("first")
        link_tree(self.store, self.folder / "store of first")

    def increment(self, case: str) -> None:
        """Build a version with more rows on what the first one kept."""
        shutil.rmtree(self.store)
        link_tree(self.folder / "store of first", self.store)
        self.figures[case] = self.run(case)
        self.figures["digests"] = {**self.figures.get("digests", {}), case: self.digests()}
        known = {path.stat().st_ino for path in files_of(self.folder / "store of first")}
        sizes = [
            (path.stat().st_size, path.stat().st_ino in known) for out in OUTS for path in files_of(self.build / out)
        ]
        written = {"written": sum(size for size, kept in sizes if not kept), "all": sum(size for size, _ in sizes)}
        self.figures["bytes"] = {**self.figures.get("bytes", {}), case: written}

    def clean(self) -> None:
        """Build everything without anything kept, and compare."""
        self.figures["clean"] = self.run("at_the_end", "off")
        self.figures["identical"] = self.digests() == self.figures["digests"]["at_the_end"]

    def digests(self) -> dict[str, str]:
        """Digest of every file that the stages wrote, but of what shows times."""
        from pipeline.core.files.digests import sha256_file

        return {
            str(path.relative_to(self.build)): sha256_file(path)
            for out in OUTS
            for path in files_of(self.build / out)
            if path.name != _OF_THE_CLOCK
        }

    def report(self) -> None:
        """Give shares of a clean build, with and without what every process costs to start."""
        cpu = {
            name: self.figures[name]
            for name in ("clean", "first_and_keep", "at_the_end", "anywhere", "added_alone", "fixed")
        }
        shares = {}
        for case in ("at_the_end", "anywhere", "added_alone"):
            work = {
                name: {stage: cpu[name][stage] - cpu["fixed"][stage] for stage in STAGES} for name in (case, "clean")
            }
            shares[case] = {
                "total": share(sum(cpu[case].values()), sum(cpu["clean"].values())),
                "work": share(sum(work[case].values()), sum(work["clean"].values())),
                "work_by_stage": {stage: share(work[case][stage], work["clean"][stage]) for stage in STAGES},
            }
        sums = {name: {**stages, "all": round(sum(stages.values()), 2)} for name, stages in cpu.items()}
        rows, added, tokens = self.sizes
        named = {"rows": rows, "added": added, "tokens": tokens}
        save(
            "versions_increment",
            {
                **named,
                "cpu_s": sums,
                "share_of_clean": shares,
                "bytes": self.figures["bytes"],
                "identical": self.figures["identical"],
            },
        )

    def do(self, phase: str) -> None:
        """Run one phase, and note what it found."""
        phases: dict[str, Callable[[], Any]] = {
            "prepare": self.prepare,
            "first": self.first,
            "at_the_end": lambda: self.increment("at_the_end"),
            "anywhere": lambda: self.increment("anywhere"),
            "clean": self.clean,
            "added_alone": lambda: self.figures.update(added_alone=self.run("added_alone", "off")),
            "fixed": lambda: self.figures.update(fixed=self.run("fixed", "off")),
            "report": self.report,
        }
        phases[phase]()
        self.record.write_text(json.dumps(self.figures))


PHASES = ("prepare", "first", "at_the_end", "anywhere", "clean", "added_alone", "fixed", "report")


def cpu_of(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """CPU seconds of a process and all that it started."""
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}")
    return round(usage.ru_utime + usage.ru_stime, 2)


def share(part: float, whole: float) -> float | None:
    """Part of a whole, where that is more than the noise of starting processes."""
    return round(part / whole, 4) if whole > SOME else None


def files_of(path: Path) -> list[Path]:
    """Return a file, or the files of a folder."""
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def link_tree(source: Path, to: Path) -> None:
    """Copy a store; its segments are never written to, so they get a second name only."""
    shutil.copytree(
        source,
        to,
        copy_function=lambda one, other: shutil.copy2(one, other) if ".sqlite" in one else os.link(one, other),
    )


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 10_000, "added": 100, "tokens": 200}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("phases", nargs="*", metavar="PHASE", choices=[*PHASES, []])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        for phase in options.phases or PHASES:
            Bench(options.folder or Path(own), options.rows, options.added, options.tokens).do(phase)


if __name__ == "__main__":
    main()
