"""A name says which thing it is: no variable is called by a word for anything, no two classes share a name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from types import CodeType

from tests.unit.test_docstring_openings import CODE
from tests.unit.test_message_form import ROOMS, ROOT

EMPTY_NAMES = {"one", "found", "it", "known", "far", "doom"}
"""Names that fit any value."""

CLASS = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines and names of all variables and parameters."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name


def names_in(code: CodeType) -> set[str]:
    """All names in compiled code, also those of attributes. To compile takes less time than to look at all nodes."""
    declared = {constant for constant in code.co_consts if isinstance(constant, str)}  # names with a type and no value
    names = {*code.co_names, *code.co_varnames, *code.co_cellvars, *declared}
    return names.union(*(names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def test_no_variable_has_a_name_that_fits_anything() -> None:
    names = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for folder in CODE
        for file in (ROOT / folder).rglob("*.py")
        for source in [file.read_text(encoding="utf-8")]
        if not EMPTY_NAMES.isdisjoint(names_in(compile(source, file, "exec")))
        for line, name in bindings(ast.parse(source))
        if name in EMPTY_NAMES
    ]

    assert names == []


def test_no_two_classes_share_a_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in (file for room in (*ROOMS, "benchmarks", "definitions/retail") for file in (ROOT / room).rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for definition in CLASS.finditer(text):
            line = text.count("\n", 0, definition.start(1)) + 1
            # A leading underscore does not tell two classes apart.
            places[definition[1].lstrip("_")].append(f"{file.relative_to(ROOT)}:{line}")

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_two_test_files_share_a_name_that_pytest_imports_them_by() -> None:
    """In a folder without `__init__.py` that is the name of the file: pytest leaves the second such file out."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file in (ROOT / "tests").rglob("test_*.py"):
        if not (file.parent / "__init__.py").exists():
            places[file.name].append(str(file.relative_to(ROOT)))

    assert {name: where for name, where in places.items() if len(where) > 1} == {}
