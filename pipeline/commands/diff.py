"""`python -m pipeline diff [REV [REV2]]`: what changed between two versions of the data, without checking anything out.

By default HEAD against the working tree; `A...B` compares B with where it left A, as a pull request does.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from pipeline.core.errors import ArtifactError
from pipeline.core.files.atomic import write_text
from pipeline.core.files.json_file import to_json
from pipeline.project.versions.diff import html_page, markdown
from pipeline.project.versions.diff.compare import Comparison
from pipeline.project.versions.diff.data import DataStore
from pipeline.project.versions.diff.difference import Difference
from pipeline.project.versions.diff.version import Revision, Version, WorkingTree, parse_range

_FORMATS: dict[str, Callable[[Difference, int], str]] = {
    "md": markdown.render,
    "html": lambda difference, _: html_page.render(difference),
    "json": lambda difference, _: to_json(difference, indent=True).decode() + "\n",
}


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more; found {text}")
        return value

    return number


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pipeline diff", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "revisions",
        nargs="*",
        metavar="REV",
        help="REV, REV REV2, A..B or A...B; default: HEAD against the working tree",
    )
    parser.add_argument(
        "--format",
        choices=sorted(_FORMATS),
        default="md",
        help="md fits a pull request's comment; default: %(default)s",
    )
    parser.add_argument("--out", type=Path, help="file to write; default: standard output")
    parser.add_argument(
        "--examples",
        type=_at_least(0),
        default=10,
        metavar="N",
        help="changed rows shown of each dataset; default: %(default)s",
    )
    parser.add_argument(
        "--limit",
        type=_at_least(1000),
        default=markdown.LIMIT,
        metavar="N",
        help="characters of the Markdown at most; default: %(default)s",
    )
    parser.add_argument(
        "--no-fetch", action="store_true", help="do not bring missing data from the DVC remote into the cache"
    )
    parser.add_argument(
        "--need-data",
        action="store_true",
        help="exit 2 when a version's rows are nowhere to be had, instead of comparing only what git holds",
    )
    return parser.parse_args(argv)


def difference_of(revisions: list[str], *, examples: int, fetch: bool) -> Difference:
    """Compare the versions that the arguments name.

    Raises:
        AerieError: a revision that does not exist or holds no build, a broken dvc.lock, or a config that does not compose.

    """
    old, new = parse_range(revisions)
    store = DataStore(fetch=fetch)
    newer: Version = WorkingTree(store) if new is None else Revision(new, store)
    return Comparison(Revision(old, store), newer, examples=examples).run()


def main(argv: list[str]) -> None:
    """Print or write the difference.

    Raises:
        AerieError: as `difference_of`; with --need-data also when data is missing.

    """
    arguments = _arguments(argv)
    found = difference_of(arguments.revisions, examples=arguments.examples, fetch=not arguments.no_fetch)
    text = _FORMATS[arguments.format](found, arguments.limit)
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        write_text(arguments.out, text)
    if arguments.need_data and found.missing:
        raise ArtifactError("rows that could not be compared:\n  " + "\n  ".join(found.missing))
