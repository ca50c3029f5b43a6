"""CPU seconds of reconstruct, audit and extract when 100 prompts come to 10,000: clean, and with the rows that the last build kept.

    python -m benchmarks.versions_increment [--rows 10000] [--added 100] [--tokens 300]

Each run is a process of its own; its start, the vocabulary and the weights are part of its figure. `floor` is the same with the added rows
alone, which is what nothing could save. `extract` runs a random model of the stand-in's size.
"""

import argparse
import json
import os
import sysconfig
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.results import in_a_process, save

STAGES = ("reconstruct", "audit", "extract")
OUTS = {"reconstruct": ("tokens.parquet", "reconstruct.json"), "audit": ("audit", "accepted.parquet"), "extract": ("hidden", "stamp.json")}


def make_rows(count: int, tokens: int, seed: int) -> list[tuple[str, str]]:
    """Lines of prompts.jsonl and responses.jsonl; text of the standard library's sources, a quarter to twice as long as ``tokens``."""
    from pipeline.targets import open_target

    _, tokenizer = open_target("kimi_k25")
    text = "".join(path.read_text("utf-8", "ignore") for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120])
    rng, lines = Random(seed), []
    for number in range(count):
        size = rng.randrange(tokens, 8 * tokens)
        start, cut = rng.randrange(len(text) - size), rng.randrange(size // 4, size)
        name, reasoning, content = f"row-{seed}-{number}", f"Row {number}. {text[start : start + cut]}", f"{text[start + cut : start + size]}."
        message = {"role": "assistant", "content": content, "reasoning": reasoning}
        billed = len(tokenizer.encode(reasoning)) + len(tokenizer.encode(content)) + 2
        body = {"provider": f"P{number % 3}", "choices": [{"index": 0, "finish_reason": "stop", "message": message}], "usage": {"completion_tokens": billed}}
        prompt = {"id": name, "messages": [{"role": "user", "content": f"Question {seed} {number}: {text[start : start + 80]}"}], "tools": None}
        lines.append((json.dumps(prompt), json.dumps({"id": name, "key": "k", "provider": body["provider"], "response": body})))
    return lines


def write(folder: Path, rows: list[tuple[str, str]]) -> None:
    """Write the inputs of the first stage."""
    for name, lines in zip(("prompts", "responses"), zip(*rows, strict=True), strict=True):
        (folder / f"{name}.jsonl").write_text("".join(line + "\n" for line in lines))


def prepare(folder: Path) -> None:
    """Write the target's record and a random model of the stand-in's size."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from pipeline.artifacts import write_json
    from pipeline.targets import open_target

    record, _ = open_target("kimi_k25")
    write_json(folder / "fingerprint.json", record)
    write_json(folder / "generate.json", {"endpoints": []})
    write_json(folder / "gate.json", {})
    (folder / "timings.jsonl").write_text("")
    torch.manual_seed(0)
    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=record.vocab_size, tie_word_embeddings=True, **sizes)).save_pretrained(folder / "model")


def run(stage: str, at: Path) -> dict[str, float]:
    """Run one stage here; return the CPU seconds of this process, its children and its start."""
    record = at / "fingerprint.json"
    files = {name: at / f"{name}.jsonl" for name in ("prompts", "responses")}
    if stage == "reconstruct":
        from pipeline.reconstruct import stage as reconstruct

        reconstruct.run(reconstruct.Config(send_tools=True), **files, record=record, tokens=at / "tokens.parquet", summary=at / "reconstruct.json")
    elif stage == "audit":
        from pipeline.audit import stage as audit
        from pipeline.audit.cli import load_section
        from pipeline.audit.config import ExpectSection

        names = {"findings": "findings.parquet", "report": "report.html", "summary": "summary.json", "sketch": "sketch.parquet", "lengths": "lengths.csv"}
        writes = {name: at / "audit" / file for name, file in names.items()}
        config = audit.Config(audit=load_section("default"), own={}, expect=ExpectSection(), allow=[], deny=[], heldout="none", heldout_digest=None)
        where = {
            "generated": at / "generate.json",
            "timings": at / "timings.jsonl",
            "tokens": at / "tokens.parquet",
            "record": record,
            "accepted": at / "accepted.parquet",
        }
        audit.run(config, **files, **where, **writes)
    else:
        from ruamel.yaml import YAML

        from pipeline.extract import stage as extract

        shipped = YAML(typ="safe").load(Path("conf/extract/default.yaml"))
        config_ = extract.Config.model_validate({"extract": shipped.get("extract", shipped)})
        where = {"accepted": at / "accepted.parquet", "verdict": at / "gate.json", "record": record, "model": at / "model"}
        extract.run(config_, **where, hidden=at / "hidden", stamp=at / "stamp.json")
    return {"cpu_s": round(sum(os.times()[:4]), 2)}


def digests(folder: Path, stage: str) -> list[str]:
    """Digests of what a stage wrote."""
    from pipeline.artifacts import sha256_file, sha256_folder

    return [sha256_folder(folder / name) if (folder / name).is_dir() else sha256_file(folder / name) for name in OUTS[stage]]


def build(folder: Path, rows: list[tuple[str, str]]) -> dict[str, float]:
    """Build one version; return each stage's CPU seconds."""
    write(folder, rows)
    return {stage: in_a_process("benchmarks.versions_increment", stage, str(folder))["cpu_s"] for stage in STAGES}


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"rows": 10_000, "added": 100, "tokens": 300}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--one", nargs=2, metavar=("STAGE", "FOLDER"))
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one[0], Path(options.one[1]))))
        return
    before, new = make_rows(options.rows, options.tokens, 0), make_rows(options.added, options.tokens, 1)
    scattered, rng = list(before), Random(2)
    for row in new:
        scattered.insert(rng.randrange(len(scattered) + 1), row)
    cpu: dict[str, dict[str, float]] = {}
    same: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        for case, rows in (("added_at_the_end", [*before, *new]), ("added_anywhere", scattered)):
            os.environ["AERIE_REUSE"] = "off"
            clean = build(folder, rows)
            wanted = [digests(folder, stage) for stage in STAGES]
            os.environ.update(AERIE_REUSE="64GiB", AERIE_STORE=str(folder / f"store of {case}"))
            first = build(folder, before)
            cpu[f"{case}.clean"], cpu[case] = clean, build(folder, rows)
            cpu.setdefault("first_and_keep", first)
            same[case] = wanted == [digests(folder, stage) for stage in STAGES]
        os.environ["AERIE_REUSE"] = "off"
        cpu["floor"] = build(folder, new)
    figures: dict[str, Any] = {**{key: value for key, value in vars(options).items() if key != "one"}, "cpu_s": cpu, "identical": same}
    for case in same:
        clean, floor = cpu[f"{case}.clean"], cpu["floor"]
        figures[f"share.{case}"] = {
            **{stage: round(cpu[case][stage] / clean[stage], 3) for stage in STAGES},
            "all": round(sum(cpu[case].values()) / sum(clean.values()), 3),
            "all_above_the_floor": round(sum(cpu[case][s] - floor[s] for s in STAGES) / sum(clean[s] - floor[s] for s in STAGES), 3),
        }
    save("versions_increment", figures)


if __name__ == "__main__":
    main()
