"""Any file content gives diagnostics, never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from tests.helpers.sampling import every_nth
from tests.unit.engine.definition.mistake import ACTIONS, CONNECTIONS

FULL: dict[str, Any] = {
    "saga": "shop",
    "description": "All fields at once.",
    "language": 1,
    "id": "shop-${{ input.a }}",
    "labels": {"tenant": "${{ input.a }}"},
    "input": {"type": "object", "properties": {"a": {"type": "string"}, "l": {"type": "array", "items": {}}}},
    "output": {"x": "${{ steps.book.result }}"},
    "deadline": "1h",
    "recovery": "backward",
    "defaults": {"timeout": "20s", "retry": {"max_attempts": 3}, "connection": "shop"},
    "steps": [
        {
            "id": "charge",
            "uses": "bank.charge",
            "with": {"amount": "${{ item }}"},
            "needs": [],
            "if": "input.a != ''",
            "for_each": "${{ input.l }}",
            "retry": {"intervals": ["1s"]},
            "compensate": [{"uses": "bank.refund", "confirmed": {"uses": "bank.refund", "timeout": "9s"}}],
            "confirm": {"uses": "shop.tell", "with": {}},
            "probe": {"uses": "http", "with": {"url": "http://a", "result": "response"}, "done": "response.json.ok"},
        },
        {"id": "ask", "uses": "wait", "with": {"signal": "go", "timeout": "1h", "on_timeout": "reject"}},
        {"id": "guard", "uses": "require", "with": {"that": "${{ input.a == 'x' }}", "message": "no"}},
        {"id": "part", "uses": "saga", "with": {"name": "other", "input": {"a": 1}}},
        {
            "id": "book",
            "uses": "sql",
            "with": {"run": [{"sql": "select :a", "params": {"a": 1}}], "emit": [{"topic": "t", "value": 1}]},
            "pivot": True,
        },
    ],
}
JUNK = (None, True, -1, 1.5, "", "${{", "${{ }}", "${{ steps }}", [], [[]], {}, {"": None}, {"a": {"b": []}})


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def replaced(path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    result = copy.deepcopy(FULL)
    target = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return result


def removed(path: tuple[Any, ...]) -> Any:
    result = replaced(path, None)
    target = result
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]
    return result


def parse(value: Any) -> None:
    definition, diagnostics = parse_text(json.dumps(value), "a.saga.yaml", ProjectContext(ACTIONS, CONNECTIONS))
    assert (definition is None) == any(diagnostic.severity == "error" for diagnostic in diagnostics), diagnostics
    assert all(
        "\n" not in diagnostic.message and diagnostic.line >= 1 and diagnostic.column >= 1 for diagnostic in diagnostics
    )


def test_the_full_definition_is_valid() -> None:
    definition, diagnostics = parse_text(json.dumps(FULL), "a.saga.yaml", ProjectContext(ACTIONS, CONNECTIONS))
    assert definition is not None, diagnostics


@pytest.mark.parametrize("turn", range(len(JUNK)), ids=map(repr, JUNK))
def test_junk_at_every_position(turn: int) -> None:
    junk = JUNK[turn]
    for path in every_nth(4, places(FULL), turn=turn):
        parse(replaced(path, junk))


def test_every_value_may_be_missing() -> None:
    for path in places(FULL):
        if path:
            parse(removed(path))


def test_a_truncated_file() -> None:
    text = json.dumps(FULL, indent=1)
    for end in every_nth(4, range(0, len(text), 7)):
        parse_text(text[:end], "a.saga.yaml", ProjectContext(ACTIONS, CONNECTIONS))
