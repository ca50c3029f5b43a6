"""`python -m pipeline export-data --format specforge|speculators --out DIR`: the rows and states as other trainers read them offline.

specforge: `rows_<g>-<g+2000>/data_<i>.ckpt`, torch files with `input_ids`, `loss_mask`, `aux_hidden_state` and `hidden_state` (after the
final norm); and `vocab_mapping.pt`. speculators: a `datasets` folder with `input_ids`, `loss_mask`, `seq_len`, `hidden_states/hs_<i>.safetensors` with
`token_ids` and `hidden_states` [tokens, 4, hidden] (low, mid, high, last before the norm); and `token_freq.pt`. Rows are written whole and unpadded,
numbered from zero through all datasets, in the order of their indexes. `loss_mask` is 1 where `train.loss_mask` gives a weight above 0: both formats
know only 0 and 1.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import torch

from pipeline.core.errors import ArtifactError, InputError
from pipeline.core.files.atomic import write_bytes, writing, writing_folder
from pipeline.core.files.json_file import read_json, read_model, write_json
from pipeline.core.files.tensors import save_tensors
from pipeline.core.sections import pick, section_of
from pipeline.drafter.vocabulary import choose_vocabulary
from pipeline.formats.build_folder import BUILD, CONFIG
from pipeline.formats.hidden_states import HiddenRow, HiddenStates, check_digest, folders_of_build, stamp_beside
from pipeline.formats.loss_mask import RULES, LossWeights, RuleName, weights_of
from pipeline.formats.schema.hidden import Stamp
from pipeline.model.weights.ends import Ends, open_ends
from pipeline.stages.train.config import TrainSection
from pipeline.stages.train.data import check_shape

GROUP = 2000
"""Rows of one folder in SpecForge's layout."""
_WRITTEN = (
    "rows_*",
    "vocab_mapping.pt",
    "data-*.arrow",
    "state.json",
    "dataset_info.json",
    "hidden_states",
    "token_freq.pt",
)
"""Names of what an export of either format has at its top."""


def main(argv: list[str]) -> int:
    """Export the states of some datasets.

    Raises:
        InputError: nothing to export.
        ArtifactError: states that do not belong to the target.

    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline export-data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", choices=["specforge", "speculators"], required=True)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder to write; an earlier export there is replaced, anything else refused",
    )
    parser.add_argument(
        "--data",
        type=Path,
        action="append",
        help="folder with shards; default: build/<dataset>/hidden of each dataset in params.yaml",
    )
    parser.add_argument(
        "--model",
        type=Path,
        default=BUILD / "target" / "model",
        help="the target's weights: SpecForge stores the state after the final norm",
    )
    parser.add_argument(
        "--loss-mask",
        choices=list(RULES),
        help="which tokens of an answer are trained on; default: train.loss_mask of the build, else all of it",
    )
    parser.add_argument(
        "--draft-vocab-size",
        type=_positive,
        default=32000,
        help="size of the vocabulary map for SpecForge (default 32000, or all there is)",
    )
    arguments = parser.parse_args(argv)
    folders = arguments.data or folders_of_build(BUILD)
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise InputError(
            f"no hidden states in {', '.join(missing)}: run `dvc repro extract`, or name with --data the folders to export"
        )
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError(
            f"--data names a folder twice: {', '.join(map(str, folders))}; each row would be trained on twice"
        )
    check_replaceable(arguments.out)
    opened = [HiddenStates(folder) for folder in folders]
    check_one_target(opened)
    if not sum(map(len, opened)):
        raise InputError(
            f"no rows to export in {[str(folder) for folder in folders] or BUILD}: run `dvc repro extract`"
        )
    weights = _weights(arguments.loss_mask)
    for folder in folders:
        if (stamp := stamp_beside(folder)).is_file():
            check_digest(folder, read_model(stamp, Stamp).sha256, stamp)
    with writing_folder(arguments.out) as out:
        if arguments.format == "specforge":
            count = to_specforge(out, opened, open_ends(arguments.model), weights, arguments.draft_vocab_size)
        else:
            count = to_speculators(out, opened, weights)
    print(f"{arguments.out}: {count:,} rows for {arguments.format}")
    return 0


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


def check_replaceable(out: Path) -> None:
    """Refuse to put an export in the place of anything but an earlier one.

    Raises:
        InputError: with what is there.

    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: is a file; --out names a folder to write")
    there = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if foreign := [name for name in there if not any(fnmatch(name, pattern) for pattern in _WRITTEN)]:
        raise InputError(
            f"{out}: holds {', '.join(foreign[:4])}, which no export wrote and replacing it would delete; name a new or an empty folder"
        )


def check_one_target(opened: list[HiddenStates]) -> None:
    """Refuse states of different targets or layers: their rows cannot train one drafter.

    Raises:
        ArtifactError: with both folders and what differs.

    """
    for states in opened[1:]:
        first, other = (
            one.manifest.model_dump(include={"target_sha256", "layer_ids", "hidden_size", "vocab_size"})
            for one in (opened[0], states)
        )
        if differing := {key: (first[key], other[key]) for key in first if first[key] != other[key]}:
            found = "; ".join(f"{key} {a} and {b}" for key, (a, b) in differing.items())
            raise ArtifactError(
                f"{opened[0].folder} and {states.folder} are not of one target: {found}; export them apart, or run `dvc repro extract`"
            )


def _weights(rule: RuleName | None) -> LossWeights:
    """Weights by the rule that was asked for, else by the build's; what the formats cannot express is said."""
    mask: RuleName | LossWeights = rule or "completion+tools"
    if rule is None and CONFIG.is_file():
        mask = cast("TrainSection", section_of(TrainSection, pick(read_json(CONFIG), "train"))).loss_mask
    weights = weights_of(mask)
    if partial := {name: weight for name, weight in weights if weight not in (0, 1)}:
        print(f"loss_mask: {partial} of train.loss_mask are written as 1: the formats have no weights", file=sys.stderr)
    return weights


def _rows(opened: list[HiddenStates], weights: LossWeights) -> Iterator[tuple[int, HiddenRow, torch.Tensor]]:
    """Number, row, and the bool mask [length] of the tokens that are trained on.

    Raises:
        ArtifactError: a row is damaged: SpecForge would leave it out, and speculators train on it.

    """
    number = 0
    for states in opened:
        for place in range(len(states)):
            yield number, states.check(place), states.loss_weights(place, weights) > 0
            number += 1


def _count(frequency: torch.Tensor, row: HiddenRow, mask: torch.Tensor) -> None:
    frequency += torch.bincount(row.token_ids[mask], minlength=len(frequency))


def _save_pt(path: Path, value: dict[Any, Any]) -> None:
    """Write a torch file; this program never reads one, since reading runs code."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    write_bytes(path, buffer.getvalue())


def to_specforge(out: Path, opened: list[HiddenStates], ends: Ends, weights: LossWeights, draft_vocab_size: int) -> int:
    """Write SpecForge's offline features; the last state goes through the final norm, which its trainer does not apply.

    Raises:
        ArtifactError: the states are not of this target.

    """
    frequency = torch.zeros(opened[0].manifest.vocab_size, dtype=torch.int64)
    for states in opened:
        if states.manifest.target_sha256 != ends.source.sha256:
            raise ArtifactError(
                f"{states.folder}: states of target {states.manifest.target_sha256[:16]}; --model is {ends.source.sha256[:16]}: the norm would be another's"
            )
        check_shape(states.manifest, ends, ends.source.name)
    count = 0
    for number, row, mask in _rows(opened, weights):
        group = number // GROUP * GROUP
        features = {
            "input_ids": row.token_ids,
            "loss_mask": mask.long(),
            "aux_hidden_state": row.aux[None].bfloat16(),
            "hidden_state": ends.teacher_hidden(row.last.float())[None].bfloat16(),
        }
        _save_pt(out / f"rows_{group}-{group + GROUP}" / f"data_{number}.ckpt", features)
        _count(frequency, row, mask)
        count += 1
    used = choose_vocabulary(frequency, min(draft_vocab_size, len(frequency)))
    t2d = torch.zeros(len(frequency), dtype=torch.bool)
    t2d[used] = True
    _save_pt(out / "vocab_mapping.pt", {"d2t": used - torch.arange(len(used)), "t2d": t2d})
    return count


def to_speculators(out: Path, opened: list[HiddenStates], weights: LossWeights) -> int:
    """Write speculators' offline data: an Arrow table as `datasets` saves it, and one safetensors file a row."""
    frequency = torch.zeros(opened[0].manifest.vocab_size, dtype=torch.int64)
    table: dict[str, list[Any]] = {"input_ids": [], "loss_mask": [], "seq_len": []}
    for number, row, mask in _rows(opened, weights):
        length = len(row.token_ids)
        four = torch.cat([row.aux.reshape(length, 3, -1), row.last[:, None].to(row.aux.dtype)], 1)
        save_tensors(
            out / "hidden_states" / f"hs_{number}.safetensors",
            {"token_ids": row.token_ids, "hidden_states": four.bfloat16()},
        )
        table["input_ids"].append(row.token_ids.tolist())
        table["loss_mask"].append(mask.long().tolist())
        table["seq_len"].append(length)
        _count(frequency, row, mask)
    _save_dataset(out, table)
    _save_pt(out / "token_freq.pt", {token: count for token, count in enumerate(frequency.tolist()) if count})
    return len(table["seq_len"])


def _save_dataset(out: Path, table: dict[str, list[Any]]) -> None:
    """Write what `Dataset.set_format("torch").save_to_disk` writes: Arrow stream, features, and the torch format, without which ids come back as lists."""
    whole_numbers = {"dtype": "int64", "_type": "Value"}
    features: dict[str, Any] = {
        name: {"feature": whole_numbers, "_type": "List"} for name in ("input_ids", "loss_mask")
    } | {"seq_len": whole_numbers}
    schema = pa.schema(
        [("input_ids", pa.list_(pa.int64())), ("loss_mask", pa.list_(pa.int64())), ("seq_len", pa.int64())]
    )
    name = "data-00000-of-00001.arrow"
    with writing(out / name) as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_table(pa.table(table, schema=schema))
    state = {
        "_data_files": [{"filename": name}],
        "_fingerprint": "aerie",
        "_format_columns": list(features),
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }
    write_json(out / "state.json", state)
    write_json(
        out / "dataset_info.json",
        {"citation": "", "description": "", "features": features, "homepage": "", "license": ""},
    )
