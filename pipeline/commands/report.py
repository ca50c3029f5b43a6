"""`python -m pipeline report`: build/report.html from what the build has made so far, or the audits as Markdown for a pull request."""

import argparse
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.core.files.atomic import write_text
from pipeline.project.report.build_page import report
from pipeline.project.report.gather import gather
from pipeline.project.report.markdown import markdown
from pipeline.project.report.overlap import across


def main(argv: list[str]) -> None:
    """Write the page, or print the Markdown.

    Raises:
        ConfigError: nothing is composed here.

    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline report", description="The build in one page; missing parts are said to be missing."
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
        print(
            markdown({dataset.name: dataset.audit for dataset in build.datasets if dataset.audit is not None}), end=""
        )
        return
    write_text(options.out, report(build, across(build)))
    print(options.out)
