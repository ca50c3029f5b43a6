"""Small faults, planted in the checks one at a time.

A fault is a reversed comparison, a number off by one, or `and` for `or`.

    python -m tests.stages.audit.mutation    list the faults that test_checks.py and test_structure.py do not notice

A changed function replaces the original in the list of checks of this process, so that a fault takes milliseconds.
"""

import ast
import copy
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from pipeline.stages.audit.checks.catalog import BY_NAME, CHECKS
from pipeline.stages.audit.checks.check import DatasetCheck, RowCheck

_COMPARE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_BINARY: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


class Mutant(NamedTuple):
    """One fault."""

    module: str
    check: str
    line: int
    what: str
    tree: ast.Module
    """The changed function alone."""


def changes(node: ast.AST) -> Iterator[tuple[str, Any]]:
    """Yield ways to spoil a node, each as a description and a function that does it to a copy."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            new = _COMPARE[type(operator)]
            yield (
                f"{type(operator).__name__} to {new.__name__}",
                lambda other, index=index, new=new: other.ops.__setitem__(index, new()),
            )
    elif isinstance(node, ast.BoolOp):
        swapped = ast.Or if isinstance(node.op, ast.And) else ast.And
        yield (
            f"{type(node.op).__name__} to {swapped.__name__}",
            lambda other, swapped=swapped: setattr(other, "op", swapped()),
        )
    elif isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        binary = _BINARY[type(node.op)]
        yield (
            f"{type(node.op).__name__} to {binary.__name__}",
            lambda other, binary=binary: setattr(other, "op", binary()),
        )
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
        yield "~ left out", lambda other: setattr(other, "op", ast.UAdd())
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield f"{node.value} to {node.value + 1}", lambda other: setattr(other, "value", other.value + 1)


def mutants(check: RowCheck | DatasetCheck) -> Iterator[Mutant]:
    """Yield every fault of a check's function."""
    lines, first_line = inspect.getsourcelines(check.run)
    function = ast.parse(textwrap.dedent("".join(lines))).body[0]
    module = check.run.__module__.rpartition(".")[2]
    cuts = {id(part) for node in ast.walk(function) if isinstance(node, ast.Slice) for part in ast.walk(node)}
    for index, node in enumerate(ast.walk(function)):
        if id(node) in cuts:  # how much of a text a message quotes
            continue
        for what, change in changes(node):
            changed = copy.deepcopy(function)
            change(list(ast.walk(changed))[index])
            tree = ast.fix_missing_locations(ast.Module([changed], []))
            yield Mutant(module, check.name, first_line + getattr(node, "lineno", 1) - 1, what, tree)


def installed(mutant: Mutant) -> RowCheck | DatasetCheck:
    """Put a fault in the list of checks; return the original."""
    original = BY_NAME[mutant.check]
    namespace = dict(inspect.getmodule(original.run).__dict__)
    exec(compile(mutant.tree, f"<mutant of {mutant.check}>", "exec"), namespace)
    BY_NAME[mutant.check] = replace(original, run=namespace[mutant.check])
    return original


def noticed(mutant: Mutant, context: Any, tokenizer: Any) -> bool:
    """Return whether a test of the checks fails with this fault."""
    from tests.stages.audit import test_checks, test_structure

    original = installed(mutant)
    try:
        test_checks.planted_faults_are_found(context, tokenizer, mutant.check)
        test_checks.limits_are_kept(context, tokenizer, mutant.check)
        test_checks.clean_rows_are_silent(context, tokenizer, 40, [mutant.check])
        if mutant.module == "structure":
            test_structure.exceptions_hold(context, tokenizer)
    except Exception:  # noqa: BLE001 - a fault may make anything fail in any way, and each is noticed
        return True
    finally:
        BY_NAME[mutant.check] = original
    return False


def main() -> None:
    """List the faults that no test notices."""
    from pipeline.project.targets import open_target
    from pipeline.stages.audit.inputs.context import make_context

    record, tokenizer = open_target("kimi_k25")
    context = make_context(record, tokenizer)
    total, unnoticed = 0, 0
    for check in CHECKS:
        for mutant in mutants(check):
            total += 1
            if not noticed(mutant, context, tokenizer):
                unnoticed += 1
                print(f"{mutant.module}.py:{mutant.line} {mutant.check}: {mutant.what}")
    print(f"{unnoticed} of {total} not noticed")


if __name__ == "__main__":
    main()
