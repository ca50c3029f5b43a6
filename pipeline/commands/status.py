"""`python -m pipeline status`: show the build in a few lines, from the small files that git keeps."""

import argparse
import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.core.files.json_file import read_json
from pipeline.core.terminal import plain_table
from pipeline.formats.build_folder import CONFIG
from pipeline.project.build_status import dataset_cells, drafter_line, provider_speeds

COLUMNS = ("dataset", "rows", "accepted", "equal to the true ids, by evidence", "verdict")


def show_speed(datasets: list[str], console: Console) -> None:
    """Print how fast each provider answered, if the build has timings."""
    table = plain_table("answers", ["dataset", "provider"], ["answers", "median s", "95 % within s", "tokens/s"])
    for speed in provider_speeds(datasets):
        rate = "" if speed.tokens_per_second is None else f"{speed.tokens_per_second:,.0f}"
        seconds = f"{speed.median_seconds:.2f}", f"{speed.p95_seconds:.2f}"
        table.add_row(speed.dataset, Text(speed.provider), str(speed.answers), *seconds, rate)
    if table.row_count:
        console.print(table)


def main(argv: list[str]) -> None:
    """Print the state of the build.

    Raises:
        ArtifactError: nothing was composed yet, or a file is damaged.

    """
    argparse.ArgumentParser(prog="python -m pipeline status", description=__doc__).parse_args(argv)
    config = read_json(CONFIG)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    table = Table(*COLUMNS, title=f"build of {config['target']['name']}")
    for name in config["names"]:
        table.add_row(*dataset_cells(name))
    console.print(table)
    show_speed(config["names"], console)
    console.print(drafter_line())
