"""`remembers_rejections` on a connection, a step and an action, and where it has no effect."""

from __future__ import annotations

import pytest

from sagas.actions.registry import Action, Actions
from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from tests.unit.engine.definition.mistake import ACTIONS, CONNECTIONS

HTTP = "uses: http, with: {connection: bank, method: POST, path: /a}"
UNDO = "compensate: {uses: http, with: {connection: bank, method: POST, path: /b}}"


async def _ask() -> None: ...


ASKED = Actions([*(ACTIONS[name] for name in ACTIONS), Action("bank.asked", _ask, remembers_rejections=True)])


@pytest.mark.parametrize(
    ("table", "step", "remembers"),
    [
        ({}, HTTP, False),
        ({"remembers_rejections": True}, HTTP, True),
        ({"remembers_rejections": True}, f"{HTTP}, remembers_rejections: false", False),
        ({}, f"{HTTP}, remembers_rejections: true", True),
        ({"remembers_rejections": True, "idempotent": False}, HTTP, False),
        ({}, "uses: bank.asked", True),
        ({}, "uses: bank.asked, remembers_rejections: false", False),
        ({}, "uses: far.away, task_queue: q", False),
        ({}, "uses: far.away, task_queue: q, remembers_rejections: true", True),
        ({}, "uses: kafka.request, with: {topic: t, value: 1}", True),
    ],
)
def test_who_is_believed(table: dict[str, object], step: str, remembers: bool) -> None:
    connections = CONNECTIONS | {"bank": {"kind": "http", **table}}
    text = f"saga: shop\nsteps:\n  - {{id: a, {step}, {UNDO}}}\n"
    definition, _ = parse_text(text, "a.saga.yaml", ProjectContext(ASKED, connections))
    assert definition is not None
    assert definition.steps[0].do.remembers_rejections is remembers


@pytest.mark.parametrize(
    ("steps", "codes"),
    [
        ([HTTP, HTTP], ["SAGA223"]),  # once for a connection
        ([f"{HTTP}, remembers_rejections: false"], []),
        (["uses: http, with: {connection: bank, method: POST, path: /a, rejected: [404, 422]}"], []),
        (["uses: http, with: {connection: old, method: POST, path: /a}, remembers_rejections: true"], ["SAGA118"]),
        (["uses: shop.tell, with: {}, remembers_rejections: true"], ["SAGA118"]),
        (["uses: http, with: {connection: bank, path: /a}"], []),  # a read
    ],
)
def test_warnings(steps: list[str], codes: list[str]) -> None:
    written = "".join(f"  - {{id: s{number}, {step}, {UNDO}}}\n" for number, step in enumerate(steps))
    text = f"saga: shop\nsteps:\n{written}"
    actual_codes = [
        diagnostic.code for diagnostic in parse_text(text, "a.saga.yaml", ProjectContext(ASKED, CONNECTIONS))[1]
    ]
    assert [code for code in actual_codes if code in ("SAGA118", "SAGA223")] == codes
