"""The budget of a process for checking inputs: who waits for whom, and who for nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from saga_activities.input_checks import InputChecks
from saga_activities.input_limits import MAX_WAITING_CHECKS
from saga_cli.commands.run.start_from import make_start_rows
from saga_cli.inputs import InputRow
from saga_workers.runtime.keyed_executor import KeyedExecutor
from saga_workers.start.saga_starter import SagaStarter
from sagas.definition.model import Definition
from sagas.errors import UsageError
from sagas.expressions import compile_expression
from sagas.expressions.work_budget import TooComplex, bounded, charge
from sagas.settings.signing_keys import SigningKeys
from tests.helpers.nested_lists import nested_list
from tests.helpers.waiting import until_in_thread

TREE: Any = {
    "$defs": {
        "tree": {
            "anyOf": [
                {"type": "array", "items": {"$ref": "#/$defs/tree"}, "contains": {"const": 0}},
                {"type": "array", "items": {"$ref": "#/$defs/tree"}},
                {"type": "string"},
            ]
        }
    },
    "properties": {"tree": {"$ref": "#/$defs/tree"}},
}


def work(steps: int) -> str:
    """Charge for steps one by one; returns the thread that it runs in."""
    for _ in range(steps):
        charge()
    return threading.current_thread().name


async def test_a_quick_check_is_made_at_once_and_a_costly_one_in_a_thread() -> None:
    checks = InputChecks()
    assert await checks.run(lambda: work(100), caller="a") == threading.current_thread().name
    assert (await checks.run(lambda: work(10_000), caller="a")).startswith("input checks")
    assert (await checks.run(lambda: work(1), caller="a", size=10**6)).startswith("input checks")
    with pytest.raises(TooComplex):
        await checks.run(lambda: work(10_000), caller="a", steps=9_000)


async def test_an_error_that_only_the_quick_check_has_made_is_not_reported() -> None:
    def check() -> str:
        try:
            return work(5_000)
        except TooComplex:
            raise UsageError("not valid") from None

    assert (await InputChecks().run(check, caller="a")).startswith("input checks")


async def test_the_inputs_of_a_caller_wait_for_each_other_and_not_for_those_of_others() -> None:
    checks, going, most, ended = InputChecks(), {"a": 0, "b": 0}, {"a": 0, "b": 0}, []

    def check(caller: str, until: threading.Event | None) -> None:
        charge(2_000)  # not a quick one
        going[caller] += 1
        most[caller] = max(most[caller], going[caller])
        while until is not None and not until.is_set():
            charge()
            time.sleep(0.001)
        going[caller] -= 1

    async def run(caller: str, until: threading.Event | None = None) -> None:
        await checks.run(lambda: check(caller, until), caller=caller)
        ended.append(caller)

    until = threading.Event()
    hostile = [asyncio.create_task(run("a", until)) for _ in range(MAX_WAITING_CHECKS + 1)]
    await asyncio.sleep(0.05)
    assert checks.is_busy("a")
    assert not checks.is_busy("b")
    await run("b")
    assert ended == ["b"]
    until.set()
    await asyncio.gather(*hostile)
    assert most == {"a": 1, "b": 1}
    assert not checks.is_busy("a")


async def test_a_costly_check_leaves_time_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that never rests would hold the interpreter for five milliseconds at each turn of the loop."""
    rests: list[float] = []
    sleep = time.sleep

    def note(seconds: float) -> None:
        rests.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", note)
    await InputChecks().run(lambda: work(100_000), caller="a")
    assert len(rests) > 500  # two for each of 400 portions, one of them for the next thread


async def test_a_check_whose_caller_has_gone_ends_soon() -> None:
    checks, ended = InputChecks(), threading.Event()

    def check() -> None:
        charge(2_000)  # not a quick one
        try:
            work(10**9)
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await checks.run(check, caller="a", steps=10**9)
    assert await asyncio.to_thread(ended.wait, 20)
    assert not checks.is_busy("a")


async def test_expressions_and_validation_share_the_steps_of_an_input() -> None:
    loops = compile_expression("input.all(a, input.all(b, a + b >= 0))")
    with bounded() as budget:
        loops.evaluate({"input": list(range(100))})
        assert 10_000 < 400_000 - budget.remaining < 40_000
    with bounded(5_000), pytest.raises(TooComplex):
        loops.evaluate({"input": list(range(100))})
    thread = await InputChecks().run(
        lambda: (loops.evaluate({"input": list(range(100))}), threading.current_thread().name), caller="a"
    )
    assert thread[1].startswith("input checks")


async def test_the_rows_of_a_file_are_not_checked_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    locator: Any = SimpleNamespace(temporal=None, ledger=None, within_temporal=lambda: locator)
    definition = Definition("rows", (), input=TREE)
    starter = SagaStarter(locator, definition, task_queue="rows", keys=SigningKeys(()))
    threads: list[str] = []
    made = SagaStarter.make_request

    def make_request(self: SagaStarter, input: Any) -> Any:
        request = made(self, input)
        threads.append(threading.current_thread().name)
        return request

    monkeypatch.setattr(SagaStarter, "make_request", make_request)
    rows = [InputRow(1, "f.json:1", {"tree": "x"}), InputRow(2, "f.json:2", {"tree": nested_list(11)})]
    orders = await make_start_rows(starter, rows, [], "f")
    assert [order.id for order in orders] == ["f-1", "f-2"]
    assert threads[0] == threading.current_thread().name
    assert threads[-1].startswith("input checks")


async def test_an_item_that_waits_aside_takes_no_place_of_others() -> None:
    done: list[str] = []
    going_on = asyncio.Event()

    async def handle(item: str) -> None:
        if item == "costly":
            async with executor.aside():
                await going_on.wait()
        done.append(item)

    executor = KeyedExecutor(handle, 1)
    for item in ("costly", "cheap", "other"):
        executor.submit(item, item)
    await until_in_thread(lambda: len(done) == 2)
    going_on.set()
    await executor.wait_idle()
    assert done == ["cheap", "other", "costly"]
