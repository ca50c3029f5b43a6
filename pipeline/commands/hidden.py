"""`python -m pipeline hidden stats|verify|show ID`: look at hidden states, and check every row."""

import argparse
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.formats.hidden_states import folders_of_build
from pipeline.project.hidden_folders import FolderCounts, ShownRow, check_folder, count_folder, find_row

BUILD = Path("build")
_COMMANDS = {
    "stats": "rows, tokens, bytes, layers",
    "verify": "read every row; check ids, sizes and values",
    "show": "one row: sizes, ids, magnitudes",
}


def main(argv: list[str]) -> int:
    """Run one of the three commands.

    Raises:
        ArtifactError: a folder is damaged.
        InputError: there are no hidden states, or no row has that id.

    """
    arguments = _parser().parse_args(argv)
    folders = arguments.data or [folder for folder in folders_of_build(BUILD) if folder.is_dir()]
    if not folders:
        raise InputError(f"no hidden states under {BUILD}/: run `dvc repro extract`, or name a folder with --data")
    if arguments.command == "show":
        _print_row(find_row(folders, arguments.id))
        return 0
    for folder in folders:
        if arguments.command == "stats":
            _print_counts(folder, count_folder(folder))
        else:
            checked = check_folder(folder)
            stamp = "no stamp beside it" if checked.stamp is None else f"equals {checked.stamp}"
            print(
                f"{folder}: {checked.rows:,} rows, {checked.tokens:,} tokens, every id checked, "
                f"all values finite; {stamp}"
            )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline hidden", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in _COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == "show":
            command.add_argument("id", help="the row's id")
        command.add_argument(
            "--data",
            type=Path,
            action="append",
            help="folder with shards; default: build/<dataset>/hidden of each dataset in params.yaml",
        )
    return parser


def _print_counts(folder: Path, counts: FolderCounts) -> None:
    manifest = counts.manifest
    print(
        f"{folder}: {counts.rows:,} rows, {counts.tokens:,} tokens ({counts.supervised:,} supervised), "
        f"longest {counts.longest:,}"
    )
    per_token = counts.shard_bytes / max(1, counts.tokens)
    print(f"  {counts.shards} shards, {counts.shard_bytes:,} bytes, {per_token:,.0f} a token as {manifest.dtype}")
    print(
        f"  inputs of layers {manifest.layer_ids} of {manifest.num_layers} ({', '.join(manifest.layer_names)}), "
        f"last state before {manifest.norm_name}"
    )
    print(
        f"  hidden size {manifest.hidden_size}, vocabulary {manifest.vocab_size:,}, "
        f"target {manifest.target_sha256[:16]}, by {manifest.engine or manifest.backend}"
    )


def _print_row(row: ShownRow) -> None:
    place = row.place
    print(
        f"{place.id}: {row.folder / place.shard}, tokens {place.offset} to {place.offset + place.length}; "
        f"prompt {place.prompt_length}, supervised {place.length - place.prompt_length}"
    )
    for size in row.states:
        print(
            f"  {size.name:<24} root mean square {size.mean_rms:.4g} (first token {size.first_rms:.4g}, "
            f"last {size.last_rms:.4g}), largest {size.largest:.4g}"
        )
    print(f"  prompt ids     {row.token_ids[: place.prompt_length]}")
    print(f"  completion ids {row.token_ids[place.prompt_length :]}")
