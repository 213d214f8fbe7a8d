"""A dozen typical sagas, each small enough to try every fault at every position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import (
    Compensation,
    Definition,
    Notification,
    Operation,
    Probe,
    Retry,
    StepDefinition,
    StepKind,
)
from tests.unit.engine.machine_properties.inputs.strategies import (
    DEADLINE,
    HOME,
    MOMENTS,
    OTHER,
    guarantee_of,
    operation,
)

INPUT: Mapping[str, Any] = {"n": 1, "items": [10, 20], "yes": True, "no": False}


def step(id: str, kind: StepKind = "compensatable", *, connection: str | None = HOME, **changes: Any) -> StepDefinition:
    """A step with short timeouts; a compensatable one is undone where it ran."""
    do = changes.pop("do", None) or operation(f"do.{id}", connection, with_={"n": "${{ input.n }}"})
    if kind == "compensatable":
        changes.setdefault("compensate", Compensation((operation(f"undo.{id}.0", connection),)))
    changes.setdefault("guarantee", guarantee_of(do))
    return StepDefinition(id=id, name=f"Step {id}", kind=kind, do=do, **changes)


def saga(*steps: StepDefinition, **changes: Any) -> Definition:
    """In the given order; a step that names no needs follows the one above it."""
    changes.setdefault("deadline", DEADLINE)
    changes.setdefault("notify", (Notification(MOMENTS, operation("tell", None, with_={"event": "${{ event }}"})),))
    return Definition(saga="typical", steps=steps, digest="sha256:typical", **changes)


def _keyless(id: str) -> Operation:
    return operation(f"do.{id}", None, with_={"n": "${{ input.n }}"}, idempotent=False)


def _probe(id: str, *, seals: bool = False) -> Probe:
    return Probe(operation(f"probe.{id}", None, seals=seals))


TYPICAL: dict[str, Definition] = {
    "a sequence without a pivot": saga(step("a"), step("b", needs=("a",)), step("c", needs=("b",))),
    "guarded pivot and a retriable": saga(
        step("a"), step("p", "pivot", needs=("a",)), step("z", "retriable", needs=("p",))
    ),
    "keyed pivot with a probe that seals": saga(
        step("a"), step("p", "pivot", connection=None, needs=("a",), probe=_probe("p", seals=True), settle=5.0)
    ),
    "keyless pivot with a probe": saga(
        step("a"), step("p", "pivot", do=_keyless("p"), needs=("a",), probe=_probe("p"), settle=5.0)
    ),
    "keyed pivot without a probe": saga(step("a"), step("p", "pivot", connection=None, needs=("a",))),
    "two branches that join": saga(
        step("a"), step("b", needs=("a",)), step("c", needs=("a",)), step("p", "pivot", needs=("b", "c"))
    ),
    "for_each, two at a time": saga(
        step("a", for_each="${{ input.items }}", max_parallel=2), step("p", "pivot", needs=("a",))
    ),
    "reserve, then confirm": saga(
        step(
            "a",
            confirm=operation("confirm.a"),
            compensate=Compensation((operation("undo.a.0"),), operation("undo_confirmed.a")),
        ),
        step("b", confirm=operation("confirm.b", OTHER), needs=("a",)),
        step("p", "pivot", needs=("b",)),
        step("z", "retriable", needs=("p",)),
    ),
    "confirmed, without a pivot": saga(
        step(
            "a",
            confirm=operation("confirm.a"),
            compensate=Compensation((operation("undo.a.0"),), operation("undo_confirmed.a")),
        ),
        step("b", needs=("a",)),
    ),
    "undone elsewhere, with an alternate": saga(
        step("a", compensate=Compensation((operation("undo.a.0", OTHER), operation("undo.a.1", None)))),
        step("b", needs=("a",)),
    ),
    "a skipped step in the middle": saga(
        step("a"), step("b", needs=("a",), if_="${{ input.no }}"), step("c", needs=("b",)), step("d", needs=("c",))
    ),
    "continue and park": saga(
        step("a", on_failure="continue"), step("b", needs=("a",), on_failure="park"), step("c", needs=("b",))
    ),
    "a nested saga": saga(
        step("a"),
        StepDefinition(
            id="b",
            name="Nested",
            kind="compensatable",
            do=Operation("saga", {"name": "child", "input": {"n": 1}}),
            needs=("a",),
            guarantee="guarded",
        ),
        step("c", needs=("b",)),
    ),
    "forward only": saga(
        step("a", "retriable"), step("b", "retriable", needs=("a",)), recovery="forward", deadline=None
    ),
    "a keyless step, tried once": saga(
        step("a", do=_keyless("a"), compensate=Compensation((operation("undo.a.0", None, retry=Retry(3)),))),
        step("b", needs=("a",)),
    ),
}
