"""Table of the stages: the config keys that each one gets, the files that it reads and writes.

In a path, `{d}` is the dataset's name and `{each}` means one path per dataset. Stage `x` is the function
`run(config, *, <reads>, <writes>)` in `pipeline/stages/x/stage.py`; `config` is an instance of that module's `Config`.
`dvc.yaml` declares the same for DVC, and a test compares the two. No stage imports this module.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: a pure function from config keys and files to files."""

    name: str
    keys: dict[str, str] = field(default_factory=dict)
    """Field of the stage's `Config` to its dotted path in build/config.json."""
    aside: dict[str, str] = field(default_factory=dict)
    """As `keys`, for values that decide where and how fast work is done, not its result: a change reruns nothing."""
    reads: dict[str, str] = field(default_factory=dict)
    """Argument of `run` to a path."""
    writes: dict[str, str] = field(default_factory=dict)
    """Argument of `run` to a path."""
    per_dataset: bool = True

    def kept_in_git(self) -> list[str]:
        """Return the paths of the written files that git keeps for review; DVC alone keeps the others."""
        return [path for path in self.writes.values() if path.endswith((".json", ".csv")) and path not in OF_THE_CLOCK]


OF_THE_CLOCK = frozenset({"build/{d}/timings.json"})
"""Small files with times, which git does not keep: they differ between two builds with the same answers."""

TARGET = {"record": "build/target/fingerprint.json"}
WEIGHTS = {"model": "build/target/model"}

STAGES = (
    Stage(
        "target",
        keys={"target": "target"},
        writes={**TARGET, **WEIGHTS, "metrics": "build/target/metrics.json"},
        per_dataset=False,
    ),
    Stage(
        "prompts",
        keys={
            "prompts": "datasets.{d}.prompts",
            "send_tools": "datasets.{d}.send_tools",
            "chat": "target.chat",
            "digest": "inputs.{d}",
        },
        writes={"prompts": "build/{d}/prompts.jsonl", "summary": "build/{d}/prompts.json"},
    ),
    Stage(
        "generate",
        keys={
            "sampling": "datasets.{d}.sampling",
            "send_tools": "datasets.{d}.send_tools",
            "dataset_budget": "datasets.{d}.budget",
            "budget": "budget",
            "provider": "provider",
        },
        reads={"prompts": "build/{d}/prompts.jsonl", **TARGET, **WEIGHTS},
        writes={
            "responses": "build/{d}/responses.jsonl",
            "summary": "build/{d}/generate.json",
            "timings": "build/{d}/timings.jsonl",
            "timings_summary": "build/{d}/timings.json",
        },
    ),
    Stage(
        "reconstruct",
        keys={
            "send_tools": "datasets.{d}.send_tools",
            "max_tokens": "datasets.{d}.sampling.max_tokens",
            "extra": "datasets.{d}.sampling.extra",
        },
        reads={"prompts": "build/{d}/prompts.jsonl", "responses": "build/{d}/responses.jsonl", **TARGET},
        writes={"tokens": "build/{d}/tokens.parquet", "summary": "build/{d}/reconstruct.json"},
    ),
    Stage(
        "calibrate",
        reads={"responses": "build/{d}/responses.jsonl", "tokens": "build/{d}/tokens.parquet", **TARGET},
        writes={"report": "build/{d}/calibration.json"},
    ),
    Stage(
        "audit",
        keys={
            "audit": "audit",
            "own": "datasets.{d}.audit",
            "expect": "datasets.{d}.expect",
            "allow": "provider.allow",
            "deny": "provider.deny",
            "heldout": "evaluate.path",
            "heldout_digest": "inputs.evaluate",
        },
        reads={
            "prompts": "build/{d}/prompts.jsonl",
            "responses": "build/{d}/responses.jsonl",
            "generated": "build/{d}/generate.json",
            "timings": "build/{d}/timings.jsonl",
            "tokens": "build/{d}/tokens.parquet",
            **TARGET,
        },
        writes={
            "accepted": "build/{d}/accepted.parquet",
            "findings": "build/{d}/audit/findings.parquet",
            "report": "build/{d}/audit/report.html",
            "summary": "build/{d}/audit/summary.json",
            "sketch": "build/{d}/audit/sketch.parquet",
            "lengths": "build/{d}/audit/lengths.csv",
        },
    ),
    Stage(
        "gate",
        reads={"summary": "build/{d}/audit/summary.json"},
        writes={"verdict": "build/{d}/audit/gate.json"},
    ),
    Stage(
        "extract",
        keys={"extract": "extract"},
        aside={"engine": "engine"},
        reads={"accepted": "build/{d}/accepted.parquet", "verdict": "build/{d}/audit/gate.json", **TARGET, **WEIGHTS},
        writes={"hidden": "build/{d}/hidden", "stamp": "build/extracted/{d}.json"},
    ),
    Stage(
        "train",
        keys={"train": "train", "names": "names"},
        reads={"stamps": "build/extracted", "hidden": "build/{each}/hidden", **TARGET, **WEIGHTS},
        writes={"checkpoint": "build/drafter/checkpoint", "log": "build/drafter/log.csv"},
        per_dataset=False,
    ),
    Stage(
        "evaluate",
        keys={"evaluate": "evaluate", "digest": "inputs.evaluate"},
        reads={"checkpoint": "build/drafter/checkpoint", **TARGET, **WEIGHTS},
        writes={"eval": "build/drafter/eval.json"},
        per_dataset=False,
    ),
    Stage(
        "export",
        reads={"checkpoint": "build/drafter/checkpoint", "eval": "build/drafter/eval.json", **TARGET},
        writes={"export": "build/drafter/export"},
        per_dataset=False,
    ),
)

BY_NAME = {stage.name: stage for stage in STAGES}
