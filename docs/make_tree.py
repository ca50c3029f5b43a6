"""`python docs/make_tree.py`: write docs/tree.md, which lists every module with the first line of its docstring.

A test fails when the page is out of date.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]


def whole_tree() -> str:
    """Return docs/tree.md: every module, folder by folder."""
    lines = ["# Every module", "", "`python docs/make_tree.py` writes this page from the modules' first lines.", ""]
    package = ROOT / "pipeline"
    folders = sorted(path for path in package.rglob("*") if path.is_dir() and path.name != "__pycache__")
    for folder in [package, *folders]:
        files = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        if files:
            lines += [f"## {folder.relative_to(ROOT)}/", "", "| file | what it does |", "|---|---|"]
            lines += [f"| `{path.name}` | {first_line(path).replace('|', chr(92) + '|')} |" for path in files]
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    (ROOT / "docs/tree.md").write_text(whole_tree())
