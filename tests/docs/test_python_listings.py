"""The Python on the pages can be used as it is shown, and no call of the engine's coroutines is without its `await`."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

import sagas
from saga_activities.guard.action_sql import ActionSql
from saga_workers.client import Client, SagaHandle
from sagas.actions.consumers import HANDLER_ATTRIBUTE
from sagas.actions.registry import ACTION_ATTRIBUTE
from tests.docs.test_pages import PAGES, ROOT

LISTING = re.compile(r"^( *)```(?:python|py)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PROJECTS = [ROOT / "definitions", ROOT / "cli/saga_cli/templates"]
DECORATORS = {"action": ACTION_ATTRIBUTE, **dict.fromkeys(("consumer", "bridge", "participant"), HANDLER_ATTRIBUTE)}
FUNCTIONS = {"enqueue", "enqueue_signal"}
METHODS = {
    "sql": {name for name in dir(ActionSql) if name in ("execute", "all", "one_or_none", "one", "scalar")},
    "message": {"newer"},
    **{
        name: {method for method, each in vars(owner).items() if inspect.iscoroutinefunction(each)}
        for name, owner in (("client", Client), ("handle", SagaHandle))
    },
}
"""Methods that are coroutine functions, by the name of the variable or attribute whose methods they are."""
PLAIN_METHODS = {"emit", "heartbeat"}
RECEIVED = {name: getattr(sagas, name) for name in ("Step", "BatchStep", "Message", "Command")}


def listings() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in LISTING.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{page.relative_to(ROOT)}:{line}", textwrap.dedent(match[2])


def parsed(text: str) -> ast.Module:
    return compile(text, "listing", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def is_coroutine(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id in FUNCTIONS
    return isinstance(call.func, ast.Attribute) and call.func.attr in METHODS.get(
        last_name(call.func.value).lower(), ()
    )


def missing_awaits(tree: ast.AST, *, in_thread: bool = False) -> list[str]:
    """The calls that are awaited and must not be, or the reverse; in the thread of a plain `def` none is awaited."""
    problems: list[str] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Await) and isinstance(node.value, ast.Call):
            if isinstance(node.value.func, ast.Attribute) and node.value.func.attr in PLAIN_METHODS:
                problems.append(f"line {node.lineno}: {ast.unparse(node)} has an `await`")
            for part in ast.iter_child_nodes(node.value):
                problems += missing_awaits(part, in_thread=in_thread)
            continue
        if isinstance(node, ast.Call) and is_coroutine(node) and not in_thread:
            problems.append(f"line {node.lineno}: {ast.unparse(node)} has no `await`")
        is_thread = isinstance(node, ast.FunctionDef) or (in_thread and not isinstance(node, ast.AsyncFunctionDef))
        problems += missing_awaits(node, in_thread=is_thread)
    return problems


def unknown_attributes(tree: ast.Module) -> list[str]:
    """The attributes that a listing uses of an engine's object, by its annotation, and that the class does not have."""
    problems: list[str] = []
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        classes = {
            argument.arg: RECEIVED[argument.annotation.id]
            for argument in function.args.args
            if isinstance(argument.annotation, ast.Name) and argument.annotation.id in RECEIVED
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in classes:
                owner = classes[node.value.id]
                if not hasattr(owner, node.attr) and node.attr not in owner.__dataclass_fields__:
                    problems.append(f"line {node.lineno}: {owner.__name__} has no {node.attr}")
    return problems


def check_imports(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"


def check_registered(tree: ast.Module) -> None:
    """Define the functions and classes of a listing: each decorated one is registered, with arguments that are named.

    A listing that leaves out its imports gets those that every page begins with.
    """
    names: dict[str, Any] = {name: getattr(sagas, name) for name in (*DECORATORS, *RECEIVED, "Rejected", "Item")}
    names |= {"__name__": "listing", "Decimal": Decimal}
    kept = [
        node
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    module = ast.Module([*kept], [])
    exec(compile(module, "listing", "exec", dont_inherit=True), names)  # noqa: S102 - it is this repository's own
    for node in kept:
        for decorator in getattr(node, "decorator_list", []):
            name = last_name(decorator.func) if isinstance(decorator, ast.Call) else ""
            if name in DECORATORS and not isinstance(node, ast.Import | ast.ImportFrom):
                registered = getattr(names[node.name], DECORATORS[name], None)
                assert registered is not None, f"{node.name} is not registered by @{name}"


@pytest.mark.parametrize(("place", "text"), [pytest.param(*each, id=each[0]) for each in listings()])
def test_a_listing_can_be_used_as_it_is_shown(place: str, text: str) -> None:
    tree = parsed(text)
    check_imports(tree)
    assert missing_awaits(tree) == []
    assert unknown_attributes(tree) == []
    if any(f"@{name}(" in text for name in DECORATORS):
        check_registered(tree)


def test_no_project_that_is_shipped_forgets_an_await() -> None:
    files = [path for folder in PROJECTS for path in folder.rglob("*.py")]
    problems = {path.name: missing_awaits(parsed(path.read_text(encoding="utf-8"))) for path in files}
    assert len(files) > 20
    assert [(name, lines) for name, lines in problems.items() if lines] == []


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("if not message.newer('a', 1): pass", "has no `await`"),
        ("row = step.sql.one('select 1')", "has no `await`"),
        ("await message.sql.execute('select 1', n=message.sql.scalar('select 1'))", "has no `await`"),
        ("enqueue(session, 'checkout')", "has no `await`"),
        ("client.signal('a', 'b')", "has no `await`"),
        ("await step.emit('topic')", "has an `await`"),
        ("await message.newer('a', 1)", ""),
        ("def plain(message): message.sql.execute('select 1')", ""),
    ],
)
def test_a_missing_await_is_seen(statement: str, problem: str) -> None:
    problems = missing_awaits(parsed(f"async def handle(message):\n    {statement}\n"))
    assert [problem in text for text in problems] == ([True] if problem else [])


def test_the_files_that_are_looked_at_exist() -> None:
    assert all(folder.is_dir() for folder in PROJECTS)
    assert METHODS["sql"]
    assert {"start", "signal"} <= METHODS["client"]
    assert "result" in METHODS["handle"]
