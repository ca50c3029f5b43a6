"""The rows that an export for another trainer is made from: opened, checked, numbered, and counted."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, cast

import torch

from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.files.json_file import read_json, read_model
from pipeline.core.sections import pick, section_of
from pipeline.formats.hidden_states import HiddenRow, HiddenStates, check_digest, stamp_beside
from pipeline.formats.loss_mask import LossWeights, RuleName, weights_of
from pipeline.formats.schema.hidden import Manifest, Stamp
from pipeline.formats.schema.target import TargetRecord
from pipeline.stages.train.config import TrainSection
from pipeline.stages.train.split import heldout_prompts, prompt_key, trainable_rows

_EXPORTED_NAMES = (
    "rows_*",
    "vocab_mapping.pt",
    "data-*.arrow",
    "state.json",
    "dataset_info.json",
    "hidden_states",
    "token_freq.pt",
)
"""Patterns of the names that an export of either format has at its top."""
Side = Literal["training", "heldout", "all"]
"""Rows of an export: those that `train` trains on, those that it holds out, or every row."""
_OF_THE_TARGET = ("target_sha256", "layer_ids", "hidden_size", "vocab_size")
"""Fields of the manifest that must be equal in all folders of an export."""


@dataclass(frozen=True, slots=True)
class Split:
    """The side of the split of `train` that is exported, and what decides the split."""

    side: Side = "all"
    share: float = 0.0
    """`train.heldout`."""
    think_open: int | None = None
    """Id that opens a reasoning."""


@dataclass(frozen=True, slots=True)
class ExportRow:
    """One row of an export."""

    number: int
    """Counted from zero through all folders."""
    states: HiddenRow
    trained: torch.Tensor
    """Bool [length]: the tokens that are trained on."""


class ExportSource:
    """The rows of some folders of hidden states, in the order of the folders and their indexes."""

    def __init__(self, folders: Sequence[Path], weights: LossWeights, split: Split = Split()) -> None:
        """Open the folders, and check them and the stamps beside them.

        Raises:
            InputError: a folder is missing or named twice, or there is no row.
            ArtifactError: a folder is damaged, changed since its extraction, or of another target.

        """
        if missing := [str(folder) for folder in folders if not folder.is_dir()]:
            raise InputError(
                f"no hidden states in {', '.join(missing)}: run `dvc repro extract`, or name the folders with --data"
            )
        if len({folder.resolve() for folder in folders}) < len(folders):
            raise InputError(
                f"--data names a folder twice: {', '.join(map(str, folders))}; each row would be trained on twice"
            )
        self.opened = [HiddenStates(folder) for folder in folders]
        check_one_target(self.opened)
        if not sum(map(len, self.opened)):
            raise InputError(f"no rows to export in {[str(folder) for folder in folders]}: run `dvc repro extract`")
        for folder in folders:
            if (stamp := stamp_beside(folder)).is_file():
                check_digest(folder, read_model(stamp, Stamp).sha256, stamp)
        self._weights = weights
        self._chosen = self._rows_of(split)
        if not any(map(len, self._chosen)):
            raise InputError(
                f"no {split.side} rows to export in {[*map(str, folders)]}: train.heldout is {split.share}"
            )
        self.frequency = torch.zeros(self.manifest.vocab_size, dtype=torch.int64)
        """int64 [vocab]: how often the rows that `rows` has yielded train each token."""

    @property
    def manifest(self) -> Manifest:
        """The first folder's manifest; the others have the same target and layers."""
        return self.opened[0].manifest

    def rows(self) -> Iterator[ExportRow]:
        """Yield the rows of the exported side, and count the tokens that each trains.

        Raises:
            ArtifactError: a row is damaged. SpecForge would leave it out, and speculators train on it.

        """
        number = 0
        for states, places in zip(self.opened, self._chosen, strict=True):
            for place in places:
                row, trained = states.check(place), states.loss_weights(place, self._weights) > 0
                self.frequency += torch.bincount(row.token_ids[trained], minlength=len(self.frequency))
                yield ExportRow(number, row, trained)
                number += 1

    def _rows_of(self, split: Split) -> list[list[int]]:
        """Return the numbers of the rows to export of each folder."""
        if split.side == "all":
            return [list(range(len(states))) for states in self.opened]
        trainable = [trainable_rows(states, self._weights) for states in self.opened]
        keys = [
            [prompt_key(states, number, split.think_open) for number in numbers]
            for states, numbers in zip(self.opened, trainable, strict=True)
        ]
        heldout = heldout_prompts([key for of_folder in keys for key in of_folder], split.share)
        return [
            [
                number
                for number, key in zip(numbers, of_folder, strict=True)
                if (key in heldout) == (split.side == "heldout")
            ]
            for numbers, of_folder in zip(trainable, keys, strict=True)
        ]


def split_of_build(side: Side | None, build: Path, *, own: bool) -> Split:
    """Return the split that `train` makes in a build.

    Without a ``side``, the build's ``own`` datasets export their training rows, and other folders all rows.
    Without a composed build nothing is held out.
    """
    side = side or ("training" if own else "all")
    config, record = build / "config.json", build / "target" / "fingerprint.json"
    if side == "all" or not config.is_file():
        return Split(side)
    train = cast("TrainSection", section_of(TrainSection, pick(read_json(config), "train")))
    target = read_model(record, TargetRecord) if record.is_file() else None
    return Split(side, train.heldout, target.role_id("think_open") if target else None)


def check_one_target(opened: Sequence[HiddenStates]) -> None:
    """Refuse states of different targets or layers: their rows cannot train one drafter.

    Raises:
        ArtifactError: with both folders and what differs.

    """
    for states in opened[1:]:
        first, other = (one.manifest.model_dump(include=set(_OF_THE_TARGET)) for one in (opened[0], states))
        if differing := [key for key in _OF_THE_TARGET if first[key] != other[key]]:
            listed = "; ".join(f"{key} {first[key]} and {other[key]}" for key in differing)
            raise ArtifactError(
                f"{opened[0].folder} and {states.folder} are not of one target: {listed}; "
                "export them apart, or run `dvc repro extract`"
            )


def check_replaceable(out: Path) -> None:
    """Refuse a folder that holds anything but an earlier export, since the new one replaces it.

    Raises:
        InputError: with the names that no export wrote.

    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; --out names a folder to write")
    present = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    foreign = [name for name in present if not any(fnmatch(name, pattern) for pattern in _EXPORTED_NAMES)]
    if foreign:
        raise InputError(
            f"{out}: holds {', '.join(foreign[:4])}, which no export wrote and replacing it would delete; "
            "name a new or an empty folder"
        )


def loss_weights(rule: RuleName | None, config: Path) -> LossWeights:
    """Return the weights of ``rule``.

    Without a rule they are those of `train.loss_mask` in the build's ``config``, if the build is composed.
    """
    if rule is None and config.is_file():
        return weights_of(cast("TrainSection", section_of(TrainSection, pick(read_json(config), "train"))).loss_mask)
    return weights_of(rule or "completion+tools")


def partial_weights(weights: LossWeights) -> dict[str, float]:
    """Return the weights that the formats cannot hold, since they know only 0 and 1."""
    return {kind: weight for kind, weight in weights if weight not in (0, 1)}
