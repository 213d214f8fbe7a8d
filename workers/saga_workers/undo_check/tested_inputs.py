"""The inputs that a project's tests give to a saga: literals in calls such as ``saga.run("checkout", BASKET)``.

The tests are read and not run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import Any

from saga_workers.undo_check.undo_check import GivenInput
from sagas.settings.trust import require_own
from sagas.text.bounded_files import read_bounded

_METHODS = ("run", "check_all", "verify_undo")
_MAX_FILES = 500
_MAX_INPUTS = 20


def inputs_of_tests(root: Path, saga: str) -> list[GivenInput]:
    """The different inputs of a saga in the files ``test_*.py`` below ``root``, in their order.

    An input that is computed is left out. Raises UsageError if a file belongs to another user.
    """
    inputs: list[GivenInput] = []
    for path in islice(_test_files(root), _MAX_FILES):
        require_own(path)
        try:
            tree = ast.parse(read_bounded(path))
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # pytest says so
        for value in _inputs(tree, saga):
            if len(inputs) < _MAX_INPUTS and all(value != given.value for given in inputs):
                inputs.append(GivenInput(value, f"from {path.relative_to(root)}"))
    return inputs


def _test_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("test_*.py")):
        if not any(part.startswith(".") for part in path.relative_to(root).parts):
            yield path


def _inputs(tree: ast.Module, saga: str) -> Iterator[Any]:
    constants: dict[str, ast.expr] = {}
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                constants[name] = value
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method), args=[ast.Constant(value=name), given, *_]) if (
                method in _METHODS and name == saga
            ):
                try:
                    yield _literal(given, constants)
                except _NotLiteral:
                    continue


class _NotLiteral(Exception):
    """The expression would have to be computed."""


def _literal(node: ast.expr, constants: Mapping[str, ast.expr]) -> Any:
    """The value of a literal of JSON values and `Decimal`, or of a constant of the module. Raises _NotLiteral."""
    match node:
        case ast.Name(id=name) if name in constants:
            return _literal(constants[name], {})
        case ast.Constant(value=str() | int() | None as value):
            return value
        case ast.Constant(value=float()):
            return Decimal(ast.unparse(node))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _literal(operand, constants)
            if isinstance(value, int | Decimal):
                return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element, constants) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {
                _literal(key, constants): _literal(value, constants)
                for key, value in zip(keys, values, strict=True)
                if isinstance(key, ast.Constant)
            }
        case ast.Call(func=ast.Name(id="Decimal"), args=[ast.Constant(value=str() | int() as text)]):
            try:
                return Decimal(text)
            except InvalidOperation:
                raise _NotLiteral from None
    raise _NotLiteral
