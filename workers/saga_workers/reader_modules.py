"""Whether a module makes consumers or bridges, told from its source: it is parsed, not imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_MAKERS = ("consumer", "bridge")


def declares_readers(file: Path) -> bool:
    """True when ``file`` calls `consumer` or `bridge` of the package `sagas`, by whatever name it has imported them.

    False as well for a file that cannot be read or is no Python: whoever imports it says what is wrong with it.
    """
    try:
        source = file.read_bytes()
        # Most modules of actions have none, and a large one takes long to parse.
        if b"sagas" not in source or not any(one.encode() in source for one in _MAKERS):
            return False
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return False
    names = set(_names(tree))
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in names for node in ast.walk(tree))


def _names(tree: ast.Module) -> Iterator[str]:
    """What the makers are called in this module: `consumer`, `sagas.bridge`, or as an import has renamed them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("sagas", "sagas.consumers") and not node.level:
            yield from (one.asname or one.name for one in node.names if one.name in _MAKERS)
        elif isinstance(node, ast.Import):
            found = (one.asname or one.name for one in node.names if one.name in ("sagas", "sagas.consumers"))
            yield from (f"{name}.{maker}" for name in found for maker in _MAKERS)
