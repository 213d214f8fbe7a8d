"""Detection of consumers and bridges in the source of a module, without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_DECORATORS = ("consumer", "bridge", "participant")

_MODULES = ("sagas", "sagas.actions.consumers", "sagas.actions.participants")


def declares_readers(file: Path) -> bool:
    """Return whether ``file`` calls `consumer` or `bridge` of the package `sagas`, under whatever name it imports them.

    False also for a file that cannot be read or is not valid Python; the import reports that.
    """
    try:
        source = file.read_bytes()
        # Most action modules have none, and a large one takes long to parse.
        if b"sagas" not in source or not any(decorator.encode() in source for decorator in _DECORATORS):
            return False
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return False
    names = set(_decorator_names(tree))
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in names for node in ast.walk(tree))


def _decorator_names(tree: ast.Module) -> Iterator[str]:
    """The names of the decorators in this module: `consumer`, `sagas.bridge`, or an alias."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in _MODULES and not node.level:
            yield from (imported.asname or imported.name for imported in node.names if imported.name in _DECORATORS)
        elif isinstance(node, ast.Import):
            modules = (imported.asname or imported.name for imported in node.names if imported.name in _MODULES)
            yield from (f"{name}.{maker}" for name in modules for maker in _DECORATORS)
