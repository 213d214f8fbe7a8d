"""The work that a workflow task charges is bounded, whatever valid input a saga has: random definitions and inputs.

Counted, not timed: tests/integration/trust/test_task_durations.py has the CPU of tasks on a real server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saga_workers.input_limits import MAX_TASK_CHECK_STEPS
from sagas.actions.registry import Action, Actions
from sagas.definition.input_validation import validate_input
from sagas.definition.loader import parse_text
from sagas.definition.model import Definition
from sagas.definition.parser.draft import ProjectContext
from sagas.expressions.limits import MAX_VALUE_STEPS, WORK_PER_STEP, WorkMeter
from sagas.expressions.work_budget import TooComplex, bounded
from sagas.input_limits import MAX_TASK_STEPS
from sagas.protocol.messages import Call, Command, MachineEvent, Started, StartTimer, TimerFired
from sagas.text.exact_json import encode_json
from tests.unit.engine.machine.driver import MachineDriver

MOST_TASKS = 400


def _keep(step: object, value: object) -> None: ...


CONTEXT = ProjectContext(Actions([Action("keep", _keep, connection="shop")]))

LISTS = ("input.a", "input.b", "[input]", "(input.a + input.b)")
EXPRESSIONS = (
    "{list}.all(x, {list}.all(y, string(x) != string(y) + 'no'))",
    "{list}.map(x, {list}.map(y, [x, y]))",
    "{list}.filter(x, string(x).contains('y')).size()",
    "{list}.map(x, string(x)).join(',').split('x').size()",
    "string({list}).split('x').map(t, t + string({list}))",
    "{list} == {list}",
    "string({list}).matches('(x|y)+z')",
    "default({list}[0], 1)",
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["x", "xy" * 2_000, 1, None]),
    lambda inner: st.one_of(
        st.tuples(inner, st.integers(1, 60)).map(lambda pair: [pair[0]] * pair[1]),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    ),
    max_leaves=4,
)
PARTS = st.sampled_from(
    [
        {"type": "array"},
        {"type": "array", "items": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/part"}]}},
        {"type": "array", "items": {"type": "object", "properties": {"x": {"default": "y" * 100}}}},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "contains": {"const": "x"}},
        {"type": "array", "unevaluatedItems": {"$ref": "#/$defs/part"}},
    ]
)


INPUTS = st.tuples(VALUES, st.integers(1, 300)).map(lambda pair: [pair[0]] * pair[1])


def parsed(steps: Sequence[Any], output: str, **schema: Any) -> Definition:
    whole = {"type": "object", "required": ["a", "b"], **schema}
    written = {"saga": "heavy", "input": whole, "steps": steps, "output": {"all": output}}
    definition, diagnostics = parse_text(encode_json(written).decode(), "heavy.saga.yaml", CONTEXT)
    assert definition is not None, [problem.message for problem in diagnostics if problem.severity == "error"]
    return definition


@st.composite
def sagas(draw: st.DrawFn) -> Definition:
    """A saga whose expressions go through its input several times."""

    def expression() -> str:
        text = draw(st.sampled_from(EXPRESSIONS)).format(list=draw(st.sampled_from(LISTS)))
        return "${{ " + text + " }}"

    steps = []
    for number in range(draw(st.integers(1, 3))):
        step: dict[str, Any] = {"id": f"s{number}", "uses": "keep", "with": {"value": expression()}}
        step["compensate"] = {"uses": "keep", "with": {"value": expression()}}
        if draw(st.booleans()):
            step["for_each"] = "${{ " + draw(st.sampled_from(LISTS)) + " }}"
        if draw(st.booleans()):
            step["if"] = "string(" + draw(st.sampled_from(LISTS)) + ") != 'x'"
        steps.append(step)
    schema = {"properties": {"a": draw(PARTS), "b": draw(PARTS)}, "$defs": {"part": draw(PARTS)}}
    return parsed(steps, expression(), **schema)


def work_of_tasks(driver: MachineDriver) -> list[int]:
    """The steps of each workflow task. All answers to the commands of a task arrive in the next one."""
    work: list[int] = []
    events: Sequence[MachineEvent] = [Started(driver.now)]
    timers: dict[str, float] = {}
    while events and len(work) < MOST_TASKS:
        meter = WorkMeter()
        driver.machine.begin_task(meter)
        commands: list[Command] = []
        for event in events:
            commands += driver.machine.next(event)
        work.append(meter.steps + meter.work // WORK_PER_STEP)
        timers |= {command.id: driver.now + command.seconds for command in commands if isinstance(command, StartTimer)}
        events = [driver.answer(command) for command in commands if isinstance(command, Call)]
        if not events and timers:
            first = min(timers, key=lambda id: timers[id])
            driver.now = max(driver.now, timers.pop(first))
            events = [TimerFired(first, driver.now)]
    return work


@given(
    definition=sagas(),
    input=st.fixed_dictionaries({"a": INPUTS, "b": INPUTS}),
    rejected=st.sampled_from(["s0", "s1", "s2", "none"]),
)
@settings(deadline=None, max_examples=60, suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large))
def test_no_valid_input_makes_a_task_long(definition: Definition, input: Any, rejected: str) -> None:
    value, problems = validate_input(definition, input)
    if problems:
        return
    with bounded(MAX_TASK_CHECK_STEPS) as budget:
        try:
            validate_input(definition, input)
        except TooComplex:
            assert budget.remaining > -MAX_TASK_CHECK_STEPS  # it stops soon; the activity `saga.verify` goes on
    answers = {f"{rejected}#0": "rejected", rejected: "rejected"}
    work = work_of_tasks(MachineDriver(definition, value, answers))
    assert max(work) <= MAX_TASK_STEPS + MAX_VALUE_STEPS


@pytest.mark.slow
def test_what_takes_long_is_left_to_later_tasks() -> None:
    expression = "${{ input.a.all(x, input.a.all(y, x + y + item >= 0)) }}"
    step = {
        "id": "s",
        "uses": "keep",
        "with": {"value": expression},
        "for_each": "${{ input.b }}",
        "max_parallel": 15,
        "compensate": {"uses": "keep", "with": {"value": 1}},
    }
    numbers = {"type": "array", "items": {"type": "integer"}}
    definition = parsed([step], "done", properties={"a": numbers, "b": numbers})
    work = work_of_tasks(MachineDriver(definition, {"a": [1] * 220, "b": [1] * 30}))
    assert max(work) <= MAX_TASK_STEPS + MAX_VALUE_STEPS
    assert sum(work) > 10 * MAX_TASK_STEPS
    assert len(work) > 10
