"""`python -m pipeline probe --target NAME`: show a tokenizer's special tokens, and its seams between segments."""

import argparse
import sys

from pipeline.core.errors import TokenizerError
from pipeline.model.tokenizer.loading import load_tokenizer
from pipeline.model.tokenizer.probe import probe_lines, tokenizer_faults
from pipeline.project.compose import target_section


def main(argv: list[str]) -> None:
    """Print the report, then the faults.

    Raises:
        ConfigError: there is no such target.
        TokenizerError: the target has faults; the report is printed first.

    """
    parser = argparse.ArgumentParser(
        prog="python -m pipeline probe", description="Show what a target's tokenizer does."
    )
    parser.add_argument("--target", required=True, help="a file of conf/target/, without .yaml")
    spec = target_section(parser.parse_args(argv).target)
    tokenizer = load_tokenizer(spec)
    faults = tokenizer_faults(spec, tokenizer)
    print(*probe_lines(spec, tokenizer, with_answer=not faults), sep="\n")
    if faults:
        sys.stdout.flush()
        listed = "\n  ".join(faults)
        raise TokenizerError(
            f"target {spec.name!r}: {len(faults)} faults:\n  {listed}\nCorrect conf/target/{spec.name}.yaml."
        )
    print("faults: none")
