"""The work of the checks grows with the steps of a saga, not with their square, nor once more with each default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sagas.definition.checks import missing_values
from sagas.definition.loader import parse_text
from sagas.definition.parser import builder
from sagas.definition.parser.draft import ProjectContext

STEPS = 60
DEFAULTS = """
defaults:
  timeout: 10s
  connection: shop
  retry: {max_attempts: 5}
  compensate: {timeout: 20s}
"""
STEP = """
  - id: s%d
    uses: sql
    with: {run: "insert into t values (:a)", params: {a: "${{ input.a }}"}}
    compensate: {uses: sql, with: {run: "delete from t where a = :a", params: {a: "${{ input.a }}"}}}
"""
INPUT = "input: {type: object, properties: {a: {type: string}}}\n"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often a step was built, and how often its arguments were searched for what they tell."""
    counts: dict[str, int] = {}
    for module, name in ((builder, "_build_step"), (missing_values, "facts_of_value")):
        monkeypatch.setattr(module, name, _counting(counts, name, getattr(module, name)))
    return counts


def _counting(counts: dict[str, int], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        counts[name] = counts.get(name, 0) + 1
        return function(*args, **options)

    return call


def test_each_step_is_looked_at_once(calls: dict[str, int]) -> None:
    text = f"saga: long\n{INPUT}{DEFAULTS}steps:{''.join(STEP % number for number in range(STEPS))}"
    context = ProjectContext({}, {"shop": {"kind": "sql", "url": "postgresql"}})
    definition, diagnostics = parse_text(text, "long.saga.yaml", context)
    assert definition is not None
    assert [each.code for each in diagnostics if each.severity == "error"] == []
    assert calls["_build_step"] <= STEPS + 10
    assert calls["facts_of_value"] <= 2 * STEPS


def test_a_default_that_no_step_takes_is_found_behind_the_last_one(calls: dict[str, int]) -> None:
    text = f"saga: long\n{INPUT}{DEFAULTS}  confirm: {{timeout: 5s}}\nsteps:{STEP % 1}{STEP % 2}"
    context = ProjectContext({}, {"shop": {"kind": "sql", "url": "postgresql"}})
    _, diagnostics = parse_text(text, "long.saga.yaml", context)
    assert "SAGA118" in [each.code for each in diagnostics]
