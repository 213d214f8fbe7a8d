"""Steps that emit events: their long form, what the engine adds when events are held, and their description."""

from __future__ import annotations

import pytest

from sagas.actions.registry import Action, Actions, action
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition, StepDefinition
from sagas.definition.parser.draft import KafkaResources, ProjectContext
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.errors import UsageError
from sagas.presentation.explain import (
    describe_compensation,
    describe_confirm,
    describe_undo_after_failure,
    explain_guarantee,
)
from sagas.simulation import Script, simulate
from sagas.text.exact_json import decode_json, encode_json


def _book(step: object) -> None: ...


ACTIONS = Actions(
    [
        Action("shop.book", _book, connection="shop"),
        Action("shop.hold", _book, connection="shop", holds=True),
        Action("bank.undo", _book),
    ]
)
CONNECTIONS = {"shop": {"kind": "sql"}, "bank": {"kind": "sql"}}
ONE = "uses: kafka.publish, with: {topic: t, value: 1, hold: true}"


def definition(steps: str) -> Definition:
    text = f"saga: shop\nsteps:\n{steps}"
    parsed, diagnostics = parse_text(
        text, "a.saga.yaml", ProjectContext(ACTIONS, CONNECTIONS, kafka=KafkaResources("shop"))
    )
    assert parsed is not None, diagnostics
    assert from_snapshot(decode_json(encode_json(to_snapshot(parsed)))) == parsed
    return parsed


def only(fields: str) -> StepDefinition:
    return definition(f"  - {{id: a, {fields}}}\n").steps[0]


def test_one_event_and_a_list_mean_the_same() -> None:
    operation = only("uses: kafka.publish, with: {topic: t, key: k, value: 1}, pivot: true").do
    assert operation.with_ == {"events": [{"topic": "t", "key": "k", "value": 1}]}
    assert operation == only("uses: kafka.publish, with: {events: [{topic: t, key: k, value: 1}]}, pivot: true").do
    assert (operation.connection, operation.guarded, operation.rejects, operation.holds) == ("shop", True, False, None)


def test_held_events_alone_bring_their_own_undo_and_confirm() -> None:
    step = only(ONE)
    assert step.kind == "compensatable"
    assert step.do.holds is True
    assert step.compensate is not None
    assert step.confirm is not None
    assert [alternate.uses for alternate in step.compensate.alternates] == ["outbox.drop"]
    assert step.compensate.confirmed is None, "what has been published is not withdrawn"
    assert (step.confirm.uses, step.confirm.connection, step.confirm.with_) == ("outbox.release", "shop", {})


def test_a_step_with_an_effect_keeps_its_own_undo() -> None:
    step = only("uses: shop.hold, compensate: [bank.undo, shop.book]")
    assert step.compensate is not None
    assert step.confirm is not None
    assert [alternate.uses for alternate in step.compensate.alternates] == ["bank.undo", "shop.book"]
    assert step.compensate.confirmed == step.compensate.alternates[0], "released is not an obstacle for the undo"
    assert step.confirm.uses == "outbox.release"


def test_an_own_confirm_stays() -> None:
    step = only("uses: shop.hold, compensate: shop.book, confirm: shop.book")
    assert step.confirm is not None
    assert step.confirm.uses == "shop.book"
    assert step.compensate is not None
    assert step.compensate.confirmed is None


def test_a_counter_event_after_the_commit_point() -> None:
    step = only(ONE + ", compensate: {uses: outbox.drop, confirmed: {uses: kafka.publish, with: {topic: t, value: 2}}}")
    assert step.compensate is not None
    assert step.compensate.alternates[0].connection == "shop"
    assert step.compensate.confirmed is not None
    assert step.compensate.confirmed.connection == "shop"


@pytest.mark.parametrize("fields", ["uses: shop.hold, pivot: true", "uses: shop.book, compensate: shop.hold"])
def test_without_held_events_nothing_is_added(fields: str) -> None:
    step = only(fields)
    assert step.do.holds is not True
    assert step.confirm is None


def test_after_the_pivot_events_are_published_at_once() -> None:
    actual_definition = definition("  - {id: p, uses: shop.book, pivot: true}\n  - {id: a, uses: shop.hold}\n")
    assert actual_definition.step("a").do.holds is False
    assert actual_definition.step("a").confirm is None
    assert actual_definition.step("p").do.holds is None


def test_explain_describes_held_events() -> None:
    held = only(ONE)
    output = "The events are rows of one transaction on shop, published at the commit point: each once, or none."
    assert explain_guarantee(held) == output
    assert describe_compensation(held) == "its held events are dropped; once published they stay"
    assert describe_undo_after_failure(held) == "its held events are dropped"
    assert describe_confirm(held) == "its held events are released at the commit point"
    plain = only("uses: kafka.publish, with: {topic: t, value: 1}, pivot: true")
    assert explain_guarantee(plain).endswith("published soon after: each once, or none.")
    frozen = only("uses: shop.hold, compensate: shop.book, confirm: shop.book")
    assert describe_confirm(frozen) == "made final by shop.book, its held events are released with it"


def test_it_can_be_simulated() -> None:
    actual_definition = definition(f"  - {{id: a, {ONE}}}\n  - {{id: b, {ONE}}}\n")
    assert simulate(actual_definition, {}, Script()).state == "COMPLETED"
    failed = simulate(actual_definition, {}, Script(outcomes={"b": "failed"}))
    assert (failed.state, failed.undone) == ("COMPENSATED", ["a"])


def test_an_action_without_a_database_cannot_hold_events() -> None:
    with pytest.raises(UsageError, match=r"shop\.tell holds events, but has no connection"):
        action("shop.tell", holds=True)
