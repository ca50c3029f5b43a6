"""`python docs/make_tree.py`: write docs/tree.md, every file of the package with its first line, and the README's tree.

The lines are the modules' own; a test fails when the two pages are not current.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOLDERS = {
    "answers": "a response body to exact ids: parse, candidates, evidence, billing habits; used by reconstruct and calibrate",
    "audit": "the checks, the verdict, the dataset's report",
    "calibrate": "the reconstruction measured against true ids",
    "diff": "what changed between two versions of the data, for a pull request",
    "eagle3": "the drafter: module, training-time test, loss, draft vocabulary, chain drafting",
    "embedded": "the server on loopback that samples from the stand-in target and answers like OpenRouter",
    "evaluate": "greedy speculative decoding, compared token for token with the target's own",
    "export": "the checkpoint as SGLang and vLLM load it, with its card",
    "extract": "the target's hidden states at the accepted ids",
    "gate": "stops the build on a no-go",
    "generate": "requests, ledger, budget, policy, retries: the only stage that may cost money",
    "prompts": "prompt files to checked prompts",
    "reconstruct": "responses to token ids, as a stage and as a command",
    "report": "what reports are built of, and the build's own page",
    "reuse": "rows of earlier builds: found by content, checked, taken; never seen in a result",
    "schema": "one module an artifact: its row type and version",
    "target": "checks the special-token map; trains the stand-in",
    "train": "the training loop: packing, resume, choice of the checkpoint, several processes",
}

TOP = {
    "conf/": "what to build: one folder a config group, one file a choice; docs/recipes/ uses conf/recipes/",
    "data/": "the prompts of the shipped datasets, and the held-out ones",
    "params.yaml": "which datasets, and Hydra overrides",
    "dvc.yaml": "the pipeline as DVC sees it",
    "build/": "what the pipeline makes; git keeps the small files, DVC the large ones",
    "tests/": "mirrors pipeline/; tests/workspace.py runs DVC for real in a copy",
    "benchmarks/": "a script for every number; results in benchmarks/results/",
    "docs/": "architecture, decisions, reconstruction, audit, versions, recipes; tree.md has every file",
    "Makefile": "setup, build, test, check, compose, bench, clean",
    "requirements.lock": "every package, pinned",
    ".ci/run": "what CI runs: make test",
}


def first_line(path: Path) -> str:
    """Give the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]


def top_tree() -> str:
    """Give the README's tree: the top level, and pipeline/ one level deep."""
    rows = list(TOP.items())
    rows.append(("pipeline/", ""))
    for path in sorted((ROOT / "pipeline").iterdir(), key=lambda path: (path.is_dir(), path.name)):
        if path.suffix == ".py" and path.name != "__init__.py":
            rows.append((f"  {path.name}", first_line(path)))
        elif path.is_dir() and path.name != "__pycache__":
            rows.append((f"  {path.name}/", FOLDERS[path.name]))
    width = max(len(name) for name, _ in rows) + 2
    return "```text\n" + "\n".join(f"{name:<{width}}{what}".rstrip() for name, what in rows) + "\n```"


def whole_tree() -> str:
    """Give docs/tree.md: every module."""
    lines = ["# Every module", "", "Written by `python docs/make_tree.py` from the modules' own first lines.", ""]
    for folder in [
        ROOT / "pipeline",
        *sorted(path for path in (ROOT / "pipeline").rglob("*") if path.is_dir() and path.name != "__pycache__"),
    ]:
        files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        if files:
            lines += [f"## {folder.relative_to(ROOT)}/", "", "| file | what it is |", "|---|---|"]
            lines += [f"| `{path.name}` | {first_line(path).replace('|', chr(92) + '|')} |" for path in files]
            lines.append("")
    return "\n".join(lines)


def readme(text: str) -> str:
    """Put the tree between the README's markers."""
    start, end = "<!-- tree -->\n", "\n<!-- end of tree -->"
    head, rest = text.split(start)
    _, tail = rest.split(end)
    return head + start + top_tree() + end + tail


if __name__ == "__main__":
    (ROOT / "docs/tree.md").write_text(whole_tree())
    (ROOT / "README.md").write_text(readme((ROOT / "README.md").read_text()))
