"""The saved state of a training run, in one file that is replaced whole.

A killed run goes on from it with the same result.
"""

import shutil
from pathlib import Path
from typing import Any

import orjson
import torch

from pipeline.core.errors import ArtifactError
from pipeline.core.files.json_file import to_json
from pipeline.core.files.tensors import TensorFile, load_tensors, save_tensors
from pipeline.stages.train.learner import Best, Learner
from pipeline.stages.train.sharding import placed_like, whole

_STATE = "state.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


class SavedRun:
    """Steps done, the log's rows and the best checkpoint; saved beside the out, since DVC deletes outs before a rerun.

    Random numbers depend on (seed, epoch) alone, so the number of steps is the only random state.
    """

    def __init__(self, checkpoint: Path, key: str) -> None:
        self._folder = checkpoint.with_name(f".{checkpoint.name}.partial")
        self._key = key
        self.step = 0
        self.rows: list[dict[str, Any]] = []
        self.best = Best()

    def save(self, learner: Learner) -> None:
        """Write weights, moments, the best weights and the step.

        All processes must call together, and the first one writes.
        """
        if not learner.sharded and not learner.group.leads:
            return
        tensors = {f"weights.{name}": whole(tensor) for name, tensor in learner.drafter.state_dict().items()}
        for name, parameter in learner.drafter.named_parameters():
            state = learner.optimizer.state[parameter]
            tensors |= {f"{moment}.{name}": whole(state[moment]) for moment in _MOMENTS}
        if not learner.group.leads:
            return
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.tensors.items()}
        facts = {
            "key": self._key,
            "step": self.step,
            "rows": self.rows,
            "best": {"estimate": self.best.estimate, "step": self.best.step},
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        save_tensors(self._folder / _STATE, tensors, {"state": to_json(facts).decode()})

    def restore(self, learner: Learner) -> bool:
        """Load a saved run of the same data, weights, settings and code, and return whether there was one.

        All processes must call together.

        Raises:
            ArtifactError: not every process sees the same one, or it is damaged.

        """
        path = self._folder / _STATE
        facts = _facts(path) if path.is_file() else {}
        usable = facts.get("key") == self._key  # the first save replaces one that is not
        learner.group.agree(facts["step"] if usable else 0, learner.device)
        if not usable:
            return False
        tensors = load_tensors(path)
        _check(path, tensors, learner.drafter)
        with torch.no_grad():
            for name, held in learner.drafter.state_dict().items():
                held.copy_(placed_like(tensors[f"weights.{name}"], held))
        for name, parameter in learner.drafter.named_parameters():
            moments = {moment: placed_like(tensors[f"{moment}.{name}"], parameter) for moment in _MOMENTS}
            learner.optimizer.state[parameter] = {"step": torch.tensor(float(facts["step"])), **moments}
        self.step, self.rows = facts["step"], facts["rows"]
        self.best = Best(facts["best"]["estimate"], facts["best"]["step"], _under("best.", tensors))
        return True

    def clear(self) -> None:
        """Remove the saved run."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _facts(path: Path) -> dict[str, Any]:
    """Read the facts of a saved run; empty if the file is not a saved run."""
    try:
        facts = orjson.loads(TensorFile(path).metadata.get("state", "{}"))
    except orjson.JSONDecodeError as error:
        raise ArtifactError(
            f"{path}: the saved run is damaged ({error}); remove {path.parent} to begin anew"
        ) from error
    return facts if isinstance(facts, dict) else {}


def _check(path: Path, tensors: dict[str, torch.Tensor], drafter: torch.nn.Module) -> None:
    """Refuse a saved run that lacks a tensor, or has one of another shape."""
    needed = {f"weights.{name}": tensor.shape for name, tensor in drafter.state_dict().items()}
    needed |= {
        f"{moment}.{name}": parameter.shape for moment in _MOMENTS for name, parameter in drafter.named_parameters()
    }
    found = {name: tensor.shape for name, tensor in tensors.items()}
    for name, shape in needed.items():
        if found.get(name) != shape:
            held = list(found[name]) if name in found else "missing"
            raise ArtifactError(
                f"{path}: the saved run is damaged: {name} is {held}; {list(shape)} is needed; "
                f"remove {path.parent} to begin anew"
            )


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
