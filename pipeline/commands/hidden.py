"""`python -m pipeline hidden stats|verify|show ID`: look at extracted hidden states, and check every row of them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.core.files.json_file import read_model
from pipeline.formats.build_folder import BUILD
from pipeline.formats.hidden_states import HiddenStates, check_digest, folders_of_build, stamp_beside
from pipeline.formats.schema.hidden import Stamp


def main(argv: list[str]) -> int:
    """Run one of the three commands.

    Raises:
        ArtifactError: what is there is damaged.
        InputError: nothing is there, or no row has that id.

    """
    parser = argparse.ArgumentParser(prog="python -m pipeline hidden", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("stats", "rows, tokens, bytes, layers"),
        ("verify", "read every row; check ids, sizes and values"),
        ("show", "one row: sizes, ids, magnitudes"),
    ):
        command = commands.add_parser(name, help=what)
        if name == "show":
            command.add_argument("id", help="the row's id")
        command.add_argument(
            "--data",
            type=Path,
            action="append",
            help="folder with shards; default: build/<dataset>/hidden of each dataset in params.yaml",
        )
    arguments = parser.parse_args(argv)
    folders = arguments.data or [folder for folder in folders_of_build(BUILD) if folder.is_dir()]
    if not folders:
        raise InputError(f"no hidden states under {BUILD}/: run `dvc repro extract`, or name a folder with --data")
    if arguments.command == "stats":
        _stats(folders)
    elif arguments.command == "verify":
        _verify(folders)
    else:
        _show(folders, arguments.id)
    return 0


def _stats(folders: Sequence[Path]) -> None:
    for folder in folders:
        states = HiddenStates(folder)
        lengths = [row.length for row in states.index]
        supervised = sum(row.length - row.prompt_length for row in states.index)
        shards = sorted(folder.glob("shard-*"))
        size = sum(path.stat().st_size for path in shards)
        manifest = states.manifest
        print(
            f"{folder}: {len(lengths):,} rows, {sum(lengths):,} tokens ({supervised:,} supervised), longest {max(lengths, default=0):,}"
        )
        print(f"  {len(shards)} shards, {size:,} bytes, {size / max(1, sum(lengths)):,.0f} a token as {manifest.dtype}")
        print(
            f"  inputs of layers {manifest.layer_ids} of {manifest.num_layers} ({', '.join(manifest.layer_names)}), last state before {manifest.norm_name}"
        )
        print(
            f"  hidden size {manifest.hidden_size}, vocabulary {manifest.vocab_size:,}, target {manifest.target_sha256[:16]}, by {manifest.engine or manifest.backend}"
        )


def _verify(folders: Sequence[Path]) -> None:
    for folder in folders:
        states = HiddenStates(folder)
        tokens = 0
        for number in range(len(states)):
            tokens += len(states.check(number).token_ids)
        stamp, stamped = stamp_beside(folder), "no stamp beside it"
        if stamp.is_file():
            check_digest(folder, read_model(stamp, Stamp).sha256, stamp)
            stamped = f"equals {stamp}"
        print(f"{folder}: {len(states):,} rows, {tokens:,} tokens, every id checked, all values finite; {stamped}")


def _show(folders: Sequence[Path], wanted: str) -> None:
    known: list[str] = []
    for folder in folders:
        states = HiddenStates(folder)
        if wanted in states.by_id:
            number = states.by_id[wanted]
            _print_row(folder, states, number)
            return
        known += list(states.by_id)[:3]
    raise InputError(f"no row {wanted!r} in {', '.join(map(str, folders))}; there are for example {known[:5]}")


def _print_row(folder: Path, states: HiddenStates, number: int) -> None:
    at, row = states.index[number], states[number]
    print(
        f"{row.id}: {folder / at.shard}, tokens {at.offset} to {at.offset + at.length}; prompt {at.prompt_length}, supervised {at.length - at.prompt_length}"
    )
    parts = [
        *zip(
            [f"input of layer {number}" for number in states.manifest.layer_ids],
            row.aux.float().chunk(3, -1),
            strict=True,
        ),
        ("last, before the norm", row.last.float()),
    ]
    for name, state in parts:
        rms = state.pow(2).mean(-1).sqrt()
        print(
            f"  {name:<24} root mean square {rms.mean():.4g} (first token {rms[0]:.4g}, last {rms[-1]:.4g}), largest {state.abs().max():.4g}"
        )
    print(f"  prompt ids     {row.token_ids[: at.prompt_length].tolist()}")
    print(f"  completion ids {row.token_ids[at.prompt_length :].tolist()}")
