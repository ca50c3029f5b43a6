"""Fingerprints under every supported version of Python, with the standard library alone."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from pipeline.core.code.syntax import digest_tree, parse
from pipeline.graph import STAGES
from tests.conftest import ROOT

VERSIONS = ("3.11", "3.12", "3.13")

SAMPLES = {
    "functions": "def f(x): pass\nasync def g(a, /, b=1, *c, d, **e) -> int: return await a\n",
    "classes": "class A(B, metaclass=C):\n    x: int = 1\n    'documents x'\n    def m(self): ...\n",
    "f-strings": (
        "f''; f'{x}'; f'{x!r:>{w}}'; f'{x:}'; f'{x=}'; f'{x = !s:^{w}.{p}}'; f'{{}}{x}}}'; rf'\\d{x}\\n'\n"
        "'a' f'{x}' 'b'; 'a' f'b'; f'a' '' f''; f'{x}' f'{y}'; f'{f\"{x}\"}'; f'''{\nx\n}''' ; f'\\N{BULLET}{x}'\n"
        "f'{x:%Y-%m-%d}'; f'{x:{\"\"}}'; f'{x:a{y}b}'; f'{lambda_}'; f'{(lambda: 1)}'; f'{x!a}'; f'{x,}'\n"
        "f'{yes}' f''\n"
    ),
    "format specifications": (
        "f'{x:a{y}b{z}c}'; f'{x:\\n}'; f'{x:%H:%M}'; f'{x:{y}.{z}f}'; f'{ x + 1 = :>5}'; f'{x=!r:^20}'; f'{(x:=5)}'\n"
    ),
    "constants": (
        "v = [1, 1.5, 1e999, 2j, -0.0, b'\\xff', u'x', 'x' 'y', ..., None, True, '\\ud800', 10**40, 0x1F, 1_0]\n"
    ),
    # U+1FAE8 is printable since 3.12, U+2EBF0 since 3.13
    "characters": "v = '\u00e9\u6771\U0001f600\U0001fae8\U0002ebf0\u200b\u2028'; caf\u00e9 = 1\n",
    "statements": (
        "match x:\n    case [1, *r]: pass\n    case {'a': b, **c}: pass\n"
        "    case A(x=1) | None: pass\n    case _: pass\n"
        "try: pass\nexcept* E as e: pass\nwith (a as b, c): pass\nfor x, in y: pass\nelse: pass\nx[1:2, ::3]; x[*y]\n"
        "global_ = (y := 1); del x, y; assert x, 'why'; raise E from e\n"
    ),
    "decorators": (
        "@a.b(1)\n@c\nclass D: pass\n\n@e\nasync def f():\n    async with a as b: yield [x async for x in y if z]\n"
    ),
}
"""Syntax whose tree differs between versions, or might."""

SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from pipeline.core.code.fingerprint import fingerprints
from pipeline.core.code.modules import modules
from pipeline.core.code.syntax import digest_tree, facts_of_tree, parse
root = Path(sys.argv[1])
given = json.load(sys.stdin)
found = {"version": "%d.%d" % sys.version_info[:2], "stages": fingerprints(root, given["stages"])}
for name, module in modules(root).items():
    digest, imports, _ = facts_of_tree(module.tree, module.package)
    found[name] = [digest, sorted(imports)]
for name, source in given["samples"].items():
    found["sample " + name] = digest_tree(parse(Path(name), source.encode("utf-8", "surrogatepass")))
json.dump(found, sys.stdout)
"""


def interpreters(version: str) -> list[str]:
    """Return the interpreters that may have this version: this one, pyenv's, and those on the path."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    candidates = [
        sys.executable,
        *map(str, sorted(pyenv.glob(f"{version}.*/bin/python"))),
        shutil.which(f"python{version}"),
    ]
    return [path for path in candidates if path]


@cache
def facts_under(version: str) -> dict[str, object] | None:
    """Return fingerprints, digests and imports as this version sees them; None where it is not installed."""
    for interpreter in interpreters(version):
        asked = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() != version:
            continue
        # -S: no third-party package; -E: no variable of Python's; -B: no compiled files of another version beside ours
        done = subprocess.run(
            [interpreter, "-S", "-E", "-B", "-c", SCRIPT, str(ROOT)],
            input=json.dumps({"stages": [stage.name for stage in STAGES], "samples": SAMPLES}),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, object] = json.loads(done.stdout)
        assert found.pop("version") == version
        return found
    return None


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_fingerprints_are_the_same_under_each_version(version: str) -> None:
    found = facts_under(version)
    if found is None:
        pytest.skip(f"Python {version} is not installed")
    here = facts_under(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert here is not None
    assert found.keys() == here.keys()
    assert {name: (fact, here[name]) for name, fact in found.items() if fact != here[name]} == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("f'{x}'", "f'{y}'"),
        ("f'{x}'", "f'{x!r}'"),
        ("f'{x}'", "f'{x:a}'"),
        ("f'a{x}'", "f'{x}a'"),
        ("v = ''", "v = b''"),
        ("v = 1", "v = True"),
        ("v = '\U0001fae8'", "v = '\U0001fae9'"),
        ("v = ''", "v = None"),
        ("def f(): pass", "def f(x): pass"),
        ("def f(x: a): pass", "def f(x): pass"),
    ],
)
def test_what_is_left_out_of_a_digest_is_never_a_value(one: str, other: str) -> None:
    first, second = (digest_tree(parse(Path("sample"), source.encode())) for source in (one, other))
    assert first != second
