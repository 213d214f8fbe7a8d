"""A definition after parsing: nothing is left implicit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sagas.actions.registry import Action, Actions
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition, Retry, StepDefinition
from sagas.definition.parser.draft import ProjectContext
from sagas.definition.snapshot import from_snapshot, to_snapshot
from sagas.presentation.explain import describe_rejection
from sagas.text.exact_json import decode_json, encode_json
from tests.unit.engine.definition.mistake import ACTIONS, CONNECTIONS


def definition(steps: str, top: str = "", actions: Actions = ACTIONS) -> Definition:
    text = f"saga: shop\n{top}steps:\n{steps}"
    parsed, diagnostics = parse_text(text, "shop.saga.yaml", ProjectContext(actions, CONNECTIONS))
    assert parsed is not None, diagnostics
    assert from_snapshot(decode_json(encode_json(to_snapshot(parsed)))) == parsed
    return parsed


def only(fields: str, top: str = "") -> StepDefinition:
    return definition(f"  - {{id: a, {fields}}}\n", top).steps[0]


@pytest.mark.parametrize(
    ("fields", "top", "kind"),
    [
        ("uses: shop.tell, compensate: shop.tell", "", "compensatable"),
        ("uses: shop.tell, pivot: true", "", "pivot"),
        ("uses: shop.tell, effect: none", "", "read"),
        ("uses: shop.tell", "recovery: forward\n", "retriable"),
        ("uses: require, with: {that: 'true'}", "", "read"),
        ("uses: wait, with: {for: 1s}", "", "read"),
        ("uses: pass", "", "read"),
        ("uses: pass, compensate: {uses: shop.tell, with: {}}", "", "compensatable"),
        ("uses: pass, pivot: true", "", "pivot"),
        ("uses: finish, with: {when: 'true'}", "", "read"),
        ("uses: http, with: {url: 'http://a'}", "", "read"),
        ("uses: http, with: {url: 'http://a', method: HEAD}", "", "read"),
        (
            "uses: http, with: {url: 'http://a', method: POST}, compensate: {uses: shop.tell, with: {}}",
            "",
            "compensatable",
        ),
        ("uses: saga, with: {name: other}", "", "compensatable"),
    ],
)
def test_kinds_follow_from_the_fields(fields: str, top: str, kind: str) -> None:
    assert only(fields, top).kind == kind


def test_the_result_of_a_pass_is_an_expression_or_a_value_with_expressions() -> None:
    assert only("uses: pass, with: {result: 1 + 1}").do.with_ == {"result": "${{ 1 + 1 }}"}
    assert only("uses: pass, with: {result: {n: '${{ 1 }}', of: 2}}").do.with_ == {"result": {"n": "${{ 1 }}", "of": 2}}


def test_the_statuses_of_a_connection_hold_where_a_request_has_none() -> None:
    crm = {
        **CONNECTIONS,
        "crm": {"kind": "http", "rejected": (404, "5xx"), "done": (201,), "remembers_rejections": True},
    }
    request = "connection: crm, path: /a, method: POST"
    text = f"saga: shop\nsteps:\n  - {{id: a, uses: http, pivot: true, with: {{{request}, %s}}}}\n"
    definitions = [
        parse_text(text % more, "shop.saga.yaml", ProjectContext(ACTIONS, crm))[0]
        for more in ("json: 1", "rejected: [422]", "rejected: []", "rejected: [], rejected_when: response.json.no")
    ]
    steps = [each.steps[0] for each in definitions if each is not None]
    assert [(step.do.with_ or {})["rejected"] for step in steps] == [[404, "5xx"], [422], [], []]
    assert [(step.do.with_ or {})["done"] for step in steps] == [[201]] * 4
    assert [step.do.rejects for step in steps] == [True, True, False, True]
    assert [describe_rejection(step) for step in steps] == [
        "rejected by the status 404 or 5xx",
        "rejected by the status 422",
        "never rejected",
        "rejected by response.json.no of a status 201",
    ]


def test_undos_and_confirms_have_defaults_of_their_own() -> None:
    top = "defaults: {timeout: 7s, retry: {max_attempts: 3}, compensate: {retry: {max_attempts: 9}, timeout: 1m}, "
    step = only(
        "uses: shop.tell, timeout: 9s, compensate: shop.tell, confirm: shop.tell", top + "confirm: {timeout: 2m}}\n"
    )
    assert step.compensate is not None
    assert step.confirm is not None
    undo = step.compensate.alternates[0]
    assert (step.do.timeout, step.do.retry.max_attempts) == (9, 3)
    assert (undo.timeout, undo.retry.max_attempts, undo.own_retry) == (60, 9, False)
    assert (step.confirm.timeout, step.confirm.retry.max_attempts) == (120, 3)
    own = only(
        "uses: shop.tell, compensate: {uses: shop.tell, timeout: 5s, retry: {max_attempts: 2}}", top + "x-a: 1}\n"
    )
    assert own.compensate is not None
    assert (own.compensate.alternates[0].timeout, own.compensate.alternates[0].retry.max_attempts) == (5, 2)


def test_always_is_a_property_of_the_whole_compensation() -> None:
    step = only("uses: shop.tell, compensate: [{uses: shop.tell, always: true}, shop.tell]")
    assert step.compensate is not None
    assert step.compensate.always


def test_after_the_pivot_a_step_is_retriable() -> None:
    actual_definition = definition("  - {id: a, uses: shop.tell, pivot: true}\n  - {id: b, uses: shop.tell}\n")
    assert [step.kind for step in actual_definition.steps] == ["pivot", "retriable"]
    assert actual_definition.pivot is actual_definition.steps[0]


def test_defaults_of_the_language() -> None:
    step = only("uses: shop.tell, pivot: true")
    assert (step.name, step.do.timeout, step.settle, step.max_parallel) == ("a", 30, 60, 1)
    assert step.do.retry == Retry(12, 1, 2, 60, None, None)
    assert (step.on_failure, step.execution, step.do.with_) == ("compensate", "remote", {})


def test_an_effect_may_appear_for_twice_the_timeout_but_at_least_a_minute() -> None:
    assert [
        only(f"{step}, timeout: {timeout}").settle
        for step in ("uses: bank.charge, with: {amount: '1'}, pivot: true", "uses: bank.blind, pivot: true")
        for timeout in ("2s", "30s", "5m")
    ] == [60, 60, 600] * 2
    assert only("uses: kafka.request, with: {topic: t, value: 1}, pivot: true").settle == 600


def test_defaults_of_the_saga_hold_where_a_step_has_none() -> None:
    top = "defaults: {timeout: 9s, heartbeat: 3s, retry: {max_attempts: 3}, on_failure: park, task_queue: q}\n"
    actual_definition = definition(
        "  - {id: a, uses: shop.tell, compensate: shop.tell}\n"
        "  - {id: b, uses: shop.tell, timeout: 8s, retry: {max_attempts: 4}, on_failure: compensate, task_queue: r,"
        " compensate: {uses: shop.tell, timeout: 7s, task_queue: s}}\n",
        top,
    )
    a, b = actual_definition.steps
    assert (a.do.timeout, a.do.heartbeat, a.do.retry.max_attempts, a.on_failure, a.do.task_queue) == (
        9,
        3,
        3,
        "park",
        "q",
    )
    assert (b.do.timeout, b.do.heartbeat, b.do.retry.max_attempts, b.on_failure, b.do.task_queue) == (
        8,
        3,
        4,
        "compensate",
        "r",
    )
    assert a.compensate
    assert b.compensate
    undo_a, undo_b = a.compensate.alternates[0], b.compensate.alternates[0]
    assert (undo_a.timeout, undo_a.heartbeat, undo_a.retry.max_attempts, undo_a.task_queue) == (9, None, 3, "q")
    assert (undo_b.timeout, undo_b.retry.max_attempts, undo_b.task_queue) == (7, 3, "s")


def test_short_and_full_forms() -> None:
    step = only(
        "uses: shop.tell, compensate: [{uses: shop.tell, with: {}, confirmed: shop.book}, shop.book],"
        " confirm: shop.tell"
    )
    assert step.compensate
    assert step.compensate.confirmed
    assert step.confirm
    assert [alternate.with_ for alternate in step.compensate.alternates] == [{}, None]
    assert (step.compensate.confirmed.uses, step.confirm.with_) == ("shop.book", None)


def test_a_probe() -> None:
    step = only(
        "uses: bank.charge, with: {amount: '1'}, pivot: true, probe: {uses: http, with: {url: 'http://a'},"
        " done: '${{ response.json.state == \"paid\" }}', absent: response.status == 404, result: response.json.id}"
    )
    assert step.probe
    assert (step.probe.done, step.probe.absent, step.probe.result) == (
        'response.json.state == "paid"',
        "response.status == 404",
        "response.json.id",
    )


@pytest.mark.parametrize("condition", ["input.a > 1", "'${{ input.a > 1 }}'", "'${{input.a > 1}}'"])
def test_a_condition_is_kept_as_one_expression(condition: str) -> None:
    assert only(f"uses: shop.tell, effect: none, if: {condition}").if_ == "${{ input.a > 1 }}"


def test_built_in_actions_accept_bare_expressions() -> None:
    assert only("uses: require, with: {that: input.a > 1}").do.with_ == {"that": "${{ input.a > 1 }}"}
    step = only("uses: http, with: {url: 'http://a', result: '${{ response.json.id }}'}")
    assert step.do.with_ == {"url": "http://a", "result": "response.json.id"}


@pytest.mark.parametrize(
    ("fields", "guarantee", "idempotent"),
    [
        ("uses: shop.tell, compensate: shop.tell", "guarded", True),
        ("uses: bank.charge, with: {amount: '1'}, compensate: bank.refund", "participant-keyed", True),
        (
            "uses: bank.charge, with: {amount: '1'}, compensate: bank.refund, idempotent: false, probe: shop.find",
            "",
            False,
        ),
        ("uses: http, with: {connection: crm, path: /a, method: POST}, pivot: true", "participant-keyed", True),
        ("uses: http, with: {connection: old, path: /a, method: POST}, pivot: true", "at-least-once", False),
        ("uses: http, with: {connection: old, path: /a, method: POST}, pivot: true, idempotent: true", "", True),
    ],
)
def test_participant_guarantees_follow_from_the_fields(fields: str, guarantee: str, idempotent: bool) -> None:
    fields = fields.replace("shop.find", "{uses: http, with: {url: 'http://a'}, done: 'true'}")
    step = only(fields)
    assert step.do.idempotent is idempotent
    assert step.guarantee == (guarantee or ("participant-keyed" if idempotent else "at-least-once"))


def test_facts_of_a_python_action_travel_with_the_run() -> None:
    def find(step: object) -> None: ...

    actions = Actions([*ACTIONS.values(), Action("bank.find", find, rejects=False, seals=True)])
    actual_definition = definition(
        "  - {id: a, uses: bank.charge, with: {amount: '1'}, pivot: true, probe: {uses: bank.find, with: {}}}\n",
        actions=actions,
    )
    probe = actual_definition.steps[0].probe
    assert probe is not None
    assert (probe.operation.seals, probe.operation.rejects) == (True, False)
    assert actual_definition.steps[0].do.rejects


def test_a_step_with_its_own_queue_may_be_foreign() -> None:
    step = only("uses: Charge, task_queue: java, with: {anything: 1}, compensate: Refund")
    assert (step.do.local, step.do.connection, step.guarantee) == (False, None, "participant-keyed")
    assert step.compensate is not None
    assert step.compensate.alternates[0].local is False
    assert only("uses: shop.tell, task_queue: q, pivot: true").do.local is True


def test_sql_has_one_form() -> None:
    step = only(
        "uses: sql, pivot: true, with: {run: 'update a set b = :b', params: {b: 1}, expect_rows: 1}",
        "defaults: {connection: shop}\n",
    )
    assert step.do.with_ == {
        "connection": "shop",
        "run": [{"sql": "update a set b = :b", "params": {"b": 1}, "expect_rows": 1}],
    }
    assert (step.do.connection, step.do.rejects, step.guarantee) == ("shop", True, "guarded")


def test_a_default_connection_goes_only_to_its_kind() -> None:
    step = only("uses: http, with: {url: 'http://a'}", "defaults: {connection: shop}\n")
    assert "connection" not in (step.do.with_ or {})


def test_local_as_a_default_holds_where_it_can() -> None:
    actual_definition = definition(
        "  - {id: a, uses: shop.tell, compensate: shop.tell}\n"
        "  - {id: b, uses: shop.tell, timeout: 6s, compensate: shop.tell}\n"
        "  - {id: c, uses: bank.blind, effect: none}\n",
        "defaults: {execution: local, timeout: 5s}\n",
    )
    assert [step.execution for step in actual_definition.steps] == ["local", "remote", "remote"]


def test_intervals() -> None:
    step = only("uses: shop.tell, pivot: true, retry: {intervals: [1s, 5s]}")
    assert step.do.retry.intervals == (1, 5)


@pytest.mark.parametrize(
    ("fields", "rejects"),
    [
        ("uses: wait, with: {for: 1s}", False),
        ("uses: wait, with: {signal: go}", True),
        ("uses: require, with: {that: 'true'}", True),
        ("uses: http, with: {url: 'http://a'}", True),
        ("uses: http, with: {url: 'http://a', rejected: []}", False),
        ("uses: sql, pivot: true, with: {connection: shop, run: select 1}", False),
        ("uses: sql, pivot: true, with: {connection: shop, run: [{sql: select 1, expect_rows: 1}]}", True),
    ],
)
def test_who_may_reject(fields: str, rejects: bool) -> None:
    assert only(fields).do.rejects is rejects


@pytest.mark.parametrize("output", [{"a": "${{ input.x }}"}, "text", [1], None, 0, False])
def test_output_is_any_value(output: Any) -> None:
    actual_definition = definition("  - {id: a, uses: shop.tell, pivot: true}\n", f"output: {json.dumps(output)}\n")
    assert actual_definition.output == output


def test_the_snapshot_round_trips() -> None:
    actual_definition = definition(
        "  - {id: a, uses: bank.charge, with: {amount: '${{ item }}'}, for_each: '${{ input.l }}', max_parallel: 3,\n"
        "     compensate:\n"
        "       [{uses: bank.refund, confirmed: {uses: shop.tell, with: {}}, retry: {intervals: [0s, 1s]}}],\n"
        "     confirm: bank.refund,\n"
        "     probe: {uses: http, with: {url: 'http://a'}, done: 'true', absent: 'false', result: '1'},\n"
        "     settle: 0s, priority: 1, fairness_key: x, if: 'true', on_failure: continue, idempotent: false}\n",
        "description: d\nid: i\nlabels: {a: b, n: 1, t: true}\ninput: {type: object}\nwarn_after: 1h\ndeadline: 2h\n",
    )
    assert actual_definition.labels == {"a": "b", "n": "1", "t": "true"}
    assert actual_definition.steps[0].settle == 0
    assert actual_definition.steps[0].compensate
    assert actual_definition.steps[0].compensate.alternates[0].retry.intervals == (0, 1)
