"""A probe that can never answer is reported, and counts as none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import pytest

from sagas.actions.registry import Absent, Action, Actions, Done, Unknown
from sagas.definition.loader import parse_text
from sagas.definition.parser.draft import ProjectContext
from sagas.presentation.explain import describe_compensation, explain, explain_guarantee
from sagas.simulation import Script, simulate
from tests.unit.engine.definition.mistake import ACTIONS, CONNECTIONS, Price

CHARGE = "uses: bank.charge, with: {amount: '1'}"


class Said(TypedDict):
    probe: str


def unsaid(step: object): ...
def anything(step: object) -> Any: ...
def done_or_unknown(step: object) -> Done | Unknown: ...
async def not_found(step: object) -> Absent | None: ...
def mapping(step: object) -> dict[str, Any]: ...
def output(step: object) -> Said: ...


def nothing(step: object) -> None: ...
def unknown(step: object) -> Unknown: ...
def boolean(step: object) -> bool | None: ...
def price(step: object) -> Price: ...
def rows(step: object) -> list[dict[str, Any]]: ...


def codes(probe: str, step: str = f"{CHARGE}, pivot: true", actions: Actions = ACTIONS) -> list[str]:
    text = f"saga: shop\nsteps:\n  - {{id: a, {step}, probe: {probe}}}\n"
    return sorted(
        diagnostic.code for diagnostic in parse_text(text, "a.saga.yaml", ProjectContext(actions, CONNECTIONS))[1]
    )


@pytest.mark.parametrize("function", [unsaid, anything, done_or_unknown, not_found, mapping, output])
def test_a_probe_that_may_decide_is_accepted(function: Callable[..., Any]) -> None:
    assert codes("{uses: look, with: {}}", actions=Actions([*ACTIONS.values(), Action("look", function)])) == []


@pytest.mark.parametrize("function", [nothing, unknown, boolean, price, rows])
def test_a_probe_that_can_never_decide_is_reported(function: Callable[..., Any]) -> None:
    actions = Actions([*ACTIONS.values(), Action("look", function)])
    assert codes("{uses: look, with: {}}", actions=actions) == ["SAGA220", "SAGA222"]
    assert codes("{uses: look, with: {}, done: response != null}", actions=actions) == []


@pytest.mark.parametrize(
    "probe",
    [
        "{uses: http, with: {url: 'http://a'}, done: response.status == 200}",
        "{uses: http, with: {url: 'http://a'}, absent: response.status == 404}",
        "{uses: sql, with: {connection: shop, run: select 1}, done: size(response) > 0}",
        "{uses: bank.find, task_queue: bank}",
        "{uses: kafka.request, with: {topic: t, value: 1}}",
    ],
)
def test_conclusive_probes_are_accepted(probe: str) -> None:
    assert codes(probe) == []


NEVER = "{uses: http, with: {url: 'http://a'}}"


def test_other_warnings_are_kept() -> None:
    blind = "uses: bank.blind, compensate: {uses: shop.tell, with: {}}"
    assert codes(NEVER, blind) == ["SAGA221", "SAGA222"]
    named = f"{CHARGE}, compensate: {{uses: bank.refund, with: {{amount: '${{{{ steps.a.result.amount }}}}'}}}}"
    assert codes(NEVER, named) == ["SAGA222", "SAGA305"]


@pytest.mark.parametrize("settle", ["", "settle: 30s", "settle: 29s"])
@pytest.mark.parametrize("seals", [True, False])
def test_a_probe_that_is_believed_before_an_attempt_can_have_ended(settle: str, seals: bool) -> None:
    actions = Actions([*ACTIONS.values(), Action("look", anything, seals=seals)])
    reported = codes("{uses: look, with: {}}", ", ".join(filter(None, (f"{CHARGE}, pivot: true", settle))), actions)
    assert reported == (["SAGA234"] if settle == "settle: 29s" and not seals else [])


def test_a_probe_of_a_guarded_step_is_unused() -> None:
    assert codes(NEVER, "uses: shop.book, pivot: true") == ["SAGA118"]


@pytest.mark.parametrize(
    ("expressions", "state"),
    [
        ("", "PARKED"),
        (", result: response.json", "PARKED"),
        (", done: response.status == 200", "COMPLETED"),
        (", absent: response.status == 404", "PARKED"),
    ],
)
def test_a_simulated_inconclusive_probe_stays_inconclusive(expressions: str, state: str) -> None:
    probe = f"{{uses: http, with: {{url: 'http://a'}}{expressions}}}"
    step = f"{CHARGE}, pivot: true, idempotent: false, retry: {{max_attempts: 2}}"
    text = f"saga: shop\nsteps:\n  - {{id: a, {step}, probe: {probe}}}\n"
    definition, _ = parse_text(text, "a.saga.yaml", ProjectContext(ACTIONS, CONNECTIONS))
    assert definition is not None
    assert simulate(definition, {}, Script({"a": "crash after effect"})).state == state


@pytest.mark.parametrize("more", ["", ", idempotent: false"])
def test_explain_says_when_a_probe_that_finds_nothing_is_believed(more: str) -> None:
    def explained(probe: str, **options: Any) -> str:
        actions = Actions([*ACTIONS.values(), Action("look", anything, **options)])
        text = f"saga: shop\nsteps:\n  - {{id: a, {CHARGE}, pivot: true, probe: {probe}{more}}}\n"
        definition, _ = parse_text(text, "a.saga.yaml", ProjectContext(actions, CONNECTIONS))
        assert definition is not None
        return explain_guarantee(definition.steps[0])

    asked = "{uses: look, with: {}}"
    assert "If look finds no effect, it is believed when no attempt has ended for 60 s (settle)." in explained(asked)
    assert "If look finds no effect, it has sealed the key" in explained(asked, seals=True)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("", "A rejection after an attempt without an answer is retried, because that attempt may be in progress."),
        (", remembers_rejections: true", "A rejection is final, also after an attempt without an answer."),
    ],
)
def test_explain_says_what_is_assumed_of_rejections(more: str, sentence: str) -> None:
    undo = "compensate: {uses: http, with: {url: 'http://a', method: POST}, always: true}"
    call = f"uses: http, with: {{url: 'http://a', method: POST, rejected: [409]}}, {undo}{more}"
    definition, _ = parse_text(
        f"saga: shop\nsteps:\n  - {{id: a, {call}}}\n", "a", ProjectContext(ACTIONS, CONNECTIONS)
    )
    assert definition is not None
    [row] = explain(definition).to_json()["steps"]
    assert row["why"].endswith(sentence)
    assert describe_compensation(definition.steps[0]) == "undone by http, also after a rejection or a failure"
