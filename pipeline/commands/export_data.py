"""`python -m pipeline export-data --format FORMAT --out DIR`: rows and states for other trainers.

specforge: torch files `rows_<g>-<g+2000>/data_<i>.ckpt` with the last state after the norm, and `vocab_mapping.pt`.
speculators: a `datasets` folder, `hidden_states/hs_<i>.safetensors` with the last state before the norm, and
`token_freq.pt`. Rows are whole and unpadded, numbered from zero through all datasets, in the order of their indexes.
The rows that `train` holds out are left out; `--split heldout` exports them, and `--split all` every row.
`loss_mask` is 1 where `train.loss_mask` has a weight above 0: both formats know only 0 and 1.
"""

import argparse
import sys
from pathlib import Path

from pipeline.core.files.atomic import writing_folder
from pipeline.formats.hidden_states import folders_of_build
from pipeline.formats.loss_mask import RULES
from pipeline.model.weights.ends import open_ends
from pipeline.project.trainer_formats.source import (
    ExportSource,
    check_replaceable,
    loss_weights,
    partial_weights,
    split_of_build,
)
from pipeline.project.trainer_formats.specforge import write_specforge
from pipeline.project.trainer_formats.speculators import write_speculators

BUILD = Path("build")


def main(argv: list[str]) -> int:
    """Export the states of some datasets.

    Raises:
        InputError: nothing to export, or a folder that must not be replaced.
        ArtifactError: the states are damaged, or not of the target.

    """
    arguments = _parser().parse_args(argv)
    check_replaceable(arguments.out)
    weights = loss_weights(arguments.loss_mask, BUILD / "config.json")
    if partial := partial_weights(weights):
        print(f"loss_mask: {partial} of train.loss_mask are written as 1: the formats have no weights", file=sys.stderr)
    split = split_of_build(arguments.split, BUILD, own=not arguments.data)
    source = ExportSource(arguments.data or folders_of_build(BUILD), weights, split)
    with writing_folder(arguments.out) as out:
        if arguments.format == "specforge":
            count = write_specforge(out, source, open_ends(arguments.model), arguments.draft_vocab_size)
        else:
            count = write_speculators(out, source)
    print(f"{arguments.out}: {count:,} rows ({split.side}) for {arguments.format}")
    return 0


def _parser() -> argparse.ArgumentParser:
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
        "--split",
        choices=["training", "heldout", "all"],
        help="rows by the split of `train`, all answers to a prompt on one side; default: training, or all with --data",
    )
    parser.add_argument(
        "--draft-vocab-size",
        type=_positive,
        default=32000,
        help="size of the vocabulary map for SpecForge (default 32000, or all there is)",
    )
    return parser


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value
