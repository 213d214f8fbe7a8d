"""Exceptions of classes that accept no attributes, or have no text, are reported as any other of an author's code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from saga_activities.action_errors import action_failure
from saga_activities.bodies.python_action import bind_arguments, run_python_action
from saga_activities.guard.action_sql import until_return
from saga_activities.guard.script_transactions import outcome_of_error
from saga_activities.own_frames import logging_own_frames
from saga_spark.job_errors import JobFailed, to_job_error
from saga_spark.runner.runner_protocol import error_to_json
from saga_workers.trigger.bridge_function import run_bridge_function
from saga_workers.trigger.consumed_record import ConsumedRecord
from sagas import Rejected, Step, enqueue
from sagas.actions.consumers import Bridge
from sagas.actions.registry import Action, load_modules
from sagas.errors import DefiniteFailure, NeedsOperator, UsageError
from tests.unit.messaging.test_hostile_records import Arrived


@dataclass(frozen=True)
class Frozen(Exception):
    sku: str


@dataclass(frozen=True, slots=True)
class Slotted(Exception):
    sku: str
    count: int


class Closed(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError("closed")


class ReadOnly(Exception):
    @property
    def __traceback__(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None

    @property
    def __cause__(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None


class Demanding(Exception):
    def __init__(self, sku: str, *, count: int) -> None:
        self.sku = sku

    def __str__(self) -> str:
        raise ValueError("no text")

    @property
    def details(self) -> Any:
        raise ValueError("no details")


MUTE = "(a Demanding without a text: its __str__ raised ValueError)"
ERRORS: list[tuple[Callable[[], Exception], str]] = [
    (lambda: Frozen("A-1"), "A-1"),
    (lambda: Frozen(sku="A-1"), "sku='A-1'"),
    (lambda: Slotted("A-1", 2), "('A-1', 2)"),
    (lambda: Closed("A-1"), "A-1"),
    (lambda: ReadOnly("A-1"), "A-1"),
    (lambda: Demanding("A-1", count=2), MUTE),
]


def step() -> Step:
    return Step("key", "id", "pay", "do", 1, 1, logging.getLogger(), lambda _: None)


async def raised_by(function: Callable[..., Any]) -> Exception:
    """The error that the body of an action gets when its function raises."""
    with ThreadPoolExecutor(1) as threads:
        try:
            with (
                logging_own_frames(logging.getLogger("saga.test"), function, "pay", 1),
                until_return(None, []),
            ):
                await run_python_action(Action("pay", function), step(), {}, threads)
        except Exception as error:  # noqa: BLE001 - what it raises is the point
            return error
    raise AssertionError


@pytest.mark.parametrize(("make", "text"), ERRORS)
@pytest.mark.parametrize("cause", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
async def test_an_operator_reads_what_the_action_has_raised(
    make: Callable[[], Exception], text: str, cause: bool, asynchronous: bool
) -> None:
    def fails() -> None:
        raise make() from (make() if cause else None)

    async def fails_later() -> None:
        fails()

    error = await raised_by(fails_later if asynchronous else fails)
    kind = type(make())
    assert isinstance(error, kind)
    failure = action_failure(error)
    assert (failure.type, failure.message) == (kind.__name__, text)
    line = fails.__code__.co_firstlineno + 1
    assert failure.details["raised_at"] == f"tests/unit/actions/test_author_errors.py:{line}"


async def test_a_result_may_raise_such_an_error_too() -> None:
    def results() -> Iterator[int]:
        yield 1
        raise Frozen("A-1")

    assert isinstance(await raised_by(results), Frozen)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("rejects", [False, True])
async def test_a_start_that_is_enqueued_without_await_is_an_error_of_the_step(rejects: bool) -> None:
    async def pay() -> None:
        enqueue(None, "checkout")  # pyright: ignore[reportUnusedCoroutine]
        if rejects:
            raise Rejected("no stock")

    error = await raised_by(pay)
    assert isinstance(error, UsageError)
    assert error.message == "`enqueue` was called without `await`, so it did nothing: write `await enqueue(…)`"


def test_so_may_a_validator() -> None:
    def check(value: str) -> str:
        raise Frozen(value)

    def pay(sku: Annotated[str, AfterValidator(check)]) -> None:
        pass

    pay.__annotations__["sku"] = Annotated[str, AfterValidator(check)]
    with pytest.raises(Frozen), until_return(None, []):
        bind_arguments(Action("pay", pay), {"sku": "A-1"}, "pay#0")


@dataclass(frozen=True)
class OutOfStock(Rejected):
    sku: str


@dataclass(frozen=True)
class Broken(DefiniteFailure):
    sku: str


@dataclass(frozen=True)
class Undecided(NeedsOperator):
    sku: str


@dataclass(frozen=True)
class Misused(UsageError):
    sku: str


@pytest.mark.parametrize(
    ("kind", "outcome", "retryable", "type"),
    [
        (OutOfStock, "rejected", False, "Rejected"),
        (Broken, "failed", False, "Broken"),
        (Undecided, "failed", False, "Parked"),
        (Misused, "failed", False, "definition"),
        (Frozen, "failed", True, "Frozen"),
    ],
)
async def test_its_base_class_decides_what_follows(
    kind: Callable[[str], Exception], outcome: str, retryable: bool, type: str
) -> None:
    def fails() -> None:
        raise kind("A-1")

    made = outcome_of_error(await raised_by(fails))
    assert made.failure is not None
    assert (made.kind, made.retryable, made.failure.type, made.failure.message) == (outcome, retryable, type, "A-1")


def test_a_bridge_names_it_in_the_dead_letter() -> None:
    def convert(_: Any) -> Any:
        raise Frozen("A-1")

    output = run_bridge_function(Bridge("b", "orders", "out", convert), ConsumedRecord(Arrived(b"1")), "group")
    assert output.dead_letter_reason == "Frozen: A-1"


@pytest.mark.parametrize(("make", "text"), ERRORS)
def test_the_answer_of_a_spark_job_names_it(make: Callable[[], Exception], text: str) -> None:
    try:
        raise make()
    except Exception as error:  # noqa: BLE001 - what it raises is the point
        failed = to_job_error(error, "the job shop.jobs:facts")
    assert isinstance(failed, JobFailed)
    assert error_to_json(failed)["message"] == f"the job shop.jobs:facts failed: {type(make()).__name__}: {text}"
    assert error_to_json(Misused("A-1"))["message"] == "A-1"


def test_a_file_of_actions_may_raise_it(tmp_path: Any) -> None:
    (tmp_path / "shop.py").write_text(
        "class Mute(Exception):\n    def __str__(self):\n        raise ValueError\n\nraise Mute\n"
    )
    with pytest.raises(UsageError, match=r"shop.py cannot be loaded: Mute: .*its __str__ raised ValueError"):
        load_modules(["shop.py"], tmp_path)
