"""`python -m pipeline doctor`: check the machine, the repository, the config, the key and the tokenizer before a build.

The command changes nothing and opens no connection. Exit 0 when a build can start, 2 when it cannot.
"""

import argparse

from rich.console import Console

from pipeline.project.diagnosis import CHECKS


def main(argv: list[str]) -> int:
    """Print the result of each check; return 2 if something would stop a build."""
    argparse.ArgumentParser(prog="python -m pipeline doctor", description=__doc__).parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    styles = {"ok": "green", "warn": "yellow", "fail": "bold red"}
    results = [diagnosis for check in CHECKS for diagnosis in check()]
    for diagnosis in results:
        console.print(f"[{styles[diagnosis.level]}]{diagnosis.level:<5}[/]", end="")
        console.print(f"{diagnosis.subject}: {diagnosis.message}", markup=False)
    counts = {level: sum(diagnosis.level == level for diagnosis in results) for level in styles}
    console.print(f"{counts['ok']} ok, {counts['warn']} to know, {counts['fail']} to mend", markup=False)
    return 2 if counts["fail"] else 0
