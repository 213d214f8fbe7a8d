"""One module alone uses pyiceberg's private API, and it was checked with the installed version."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from saga_spark.sinks.iceberg import pyiceberg_internals

ROOT = Path(__file__).parents[3]
ADAPTER = Path(pyiceberg_internals.__file__).resolve()


def sources() -> Iterator[Path]:
    """The Python files of the repository that import pyiceberg, except the adapter."""
    for folder in ("sagas", "activities", "spark_steps", "workers", "cli", "definitions", "tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            if path != ADAPTER and "pyiceberg" in text and any(map(_is_pyiceberg_import, ast.walk(ast.parse(text)))):
                yield path


def private_names(source: str) -> list[str]:
    """The private names that a source imports from pyiceberg, or reads from objects that are not its own."""
    collected = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and _is_pyiceberg_import(node):
            collected += [name.name for name in node.names if name.name.startswith("_")]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            collected += [] if own else [node.attr]
    return collected


def _is_pyiceberg_import(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "pyiceberg"
    return isinstance(node, ast.Import) and any(name.name.split(".")[0] == "pyiceberg" for name in node.names)


@pytest.mark.parametrize(
    "source",
    [
        "from pyiceberg.table.update.snapshot import _OverwriteFiles",
        "import pyiceberg\ntransaction._stage(updates)",
        "import pyiceberg\nproducer._parent_snapshot_id = None",
        "import pyiceberg\nsuper()._meta",
    ],
)
def test_private_names_are_recognised(source: str) -> None:
    assert len(private_names(source)) == 1


def test_only_the_adapter_uses_private_names_of_pyiceberg() -> None:
    names_by_path = {str(path.relative_to(ROOT)): private_names(path.read_text()) for path in sources()}
    assert len(names_by_path) > 10
    assert {path: names for path, names in names_by_path.items() if names} == {}


def test_the_adapter_was_checked_with_the_installed_version() -> None:
    assert f"pyiceberg {version('pyiceberg')}," in (pyiceberg_internals.__doc__ or "")
