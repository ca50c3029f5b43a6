"""`python -m pipeline report`: the build in one page, or its audits as Markdown for a pull request."""

import argparse
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.files.atomic import write_text
from pipeline.project.report.build_page import report
from pipeline.project.report.gather import gather
from pipeline.project.report.markdown import markdown
from pipeline.project.report.overlap import across


def main(argv: list[str]) -> None:
    """Write the page and print its path, or print the Markdown.

    Raises:
        ConfigError: build/config.json is missing or cannot be read.

    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline report", description="The build in one page, which also names the missing parts."
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/report.html"),
        help="where to write the page (default: build/report.html)",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the audits as Markdown instead, for a pull request"
    )
    options = parser.parse_args(argv)
    build = gather(Path())
    if build is None:
        raise ConfigError("build/config.json: not there or not readable; run `python -m pipeline compose` first")
    if options.markdown:
        audits = {dataset.name: dataset.audit for dataset in build.datasets if dataset.audit is not None}
        print(markdown(audits), end="")
        return
    write_text(options.out, report(build, across(build)))
    print(options.out)
