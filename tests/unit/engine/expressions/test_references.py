"""References of an expression: names, places, and nulls that are handled there."""

from __future__ import annotations

import pytest

from sagas.expressions import compile_expression

CHARGE = "steps.charge.result"


def guards(source: str) -> list[tuple[str, bool]]:
    return [(".".join(reference.path), reference.guarded) for reference in compile_expression(source).references]


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("1 + 2", []),
        ("input.a.b", ["input.a.b"]),
        ("input['a'].b", ["input.a.b"]),
        ("input.lines[0].sku", ["input.lines"]),
        ("input.lines[index].sku", ["input.lines", "index"]),
        ("input.name.size()", ["input.name"]),
        ("input.lines.map(l, l.qty * item.n)", ["input.lines", "item.n"]),
        ("input.l.map(l, l.all(m, m > vars.x)) + l", ["input.l", "vars.x", "l"]),
        ("{input.k: input.v, 'x': [saga.id]}", ["input.k", "input.v", "saga.id"]),
        ("(input.a).b", ["input.a.b"]),
        ("'input.a'", []),
    ],
)
def test_paths_in_the_order_of_the_source(source: str, paths: list[str]) -> None:
    assert [path for path, _ in guards(source)] == paths


def test_offsets_count_from_the_start_of_the_source() -> None:
    expression = compile_expression("${{  input.a + steps.b.result }}")
    assert expression.source == "input.a + steps.b.result"
    assert [(reference.path, reference.offset) for reference in expression.references] == [
        (("input", "a"), 0),
        (("steps", "b", "result"), 10),
    ]


@pytest.mark.parametrize(
    ("source", "guarded"),
    [
        ("R.id", [False]),
        ("default(R.id, 1)", [True]),
        ("default(1, R.id)", [False]),
        ("default(sum([R.id]), 0)", [True]),
        ("has(R.id)", [True]),
        ("R == null", [True]),
        ("null != R.id", [True]),
        ("R == null ? 0 : R.id", [True, True]),
        ("R == null ? R.id : 0", [True, False]),
        ("R != null ? R.id : 0", [True, True]),
        ("R != null && R.id > 1", [True, True]),
        ("R.id > 1 && R != null", [True, True]),
        ("R == null || R.id > 1", [True, True]),
        ("R != null || R.id > 1", [True, False]),
        ("R == null && R.id > 1", [True, False]),
        ("!(R == null) && R.id > 1", [True, True]),
        ("!(R == null || input.x) ? R.id : 0", [True, False, True]),
        ("has(R.id) ? R.id : 'none'", [True, True]),
        ("has(R.id) && R.other > 1", [True, True]),
        ("R.id != null ? R.other : 0", [True, True]),
        ("steps.other.result != null ? R.id : 0", [True, False]),
        ("steps.charge.state == 'DONE' ? R.id : 0", [False, True]),
        ("steps.charge.state != 'DONE' ? 0 : R.id", [False, True]),
        ("steps.charge.state == 'FAILED' ? R.id : 0", [False, False]),
        ("R != null ? [1].map(x, x * R.n) : []", [True, True]),
        ("input.a.b != null && input.a.c == 1", [True, True]),
        ("input.a != null && input.b.c == 1", [True, False]),
    ],
)
def test_guards(source: str, guarded: list[bool]) -> None:
    assert [safe for _, safe in guards(source.replace("R", CHARGE))] == guarded


NULLS = {"steps": {"charge": {"result": None, "state": "FAILED"}, "other": {"result": None}}, "input": {"x": True}}


@pytest.mark.parametrize(
    "source",
    [
        "default(R.id, 1)",
        "has(R.id)",
        "R.id == null",
        "R == null ? 0 : R.id",
        "R.id > 1 && R != null",
        "R == null || R.id > 1",
        "has(R.id) && R.other > 1",
        "R.id != null ? R.other : 0",
        "steps.charge.state == 'DONE' ? R.id : 0",
    ],
)
def test_guarded_references_accept_null(source: str) -> None:
    expression = compile_expression(source.replace("R", CHARGE))
    assert all(reference.guarded for reference in expression.references if reference.path[2] == "result")
    expression.evaluate(NULLS)
