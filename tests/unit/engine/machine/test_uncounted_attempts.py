"""Attempts that were none, because what runs the action was lost: repeated at `max_interval`, uncounted, with a reason
to read, and never what leads backward."""

from __future__ import annotations

from typing import Any

import pytest

from saga_workers.views.stuck import reported_reasons
from sagas.definition.model import Retry
from sagas.protocol.messages import CallEnded
from sagas.protocol.outcomes import Failure, Outcome
from sagas.protocol.payloads import decode_failure, encode_failure
from tests.unit.engine.machine.driver import START, World, op, saga, step


def unavailable(attempt: int = 1) -> Outcome:
    failure = Failure("Infrastructure", "the runner was killed")
    return Outcome("failed", failure=failure, attempt=attempt, infrastructure=True, counted=False)


def lose(world: World, id: str, attempt: int = 1) -> World:
    """What ran the attempt of this number is lost; those before it in the same call count."""
    world.flights.pop(id)
    return world.feed(CallEnded(id, unavailable(attempt), world.now, attempt - 1))


def row(world: World, id: str) -> dict[str, Any]:
    return next(one for one in world.story["steps"] if one["id"] == id)


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("kind", ["compensatable", "pivot", "retriable", "read"])
def test_a_step_that_could_not_be_tried_goes_on_and_its_attempts_do_not_count(kind: str, restore: bool) -> None:
    steps = [step("p", kind="pivot")] if kind == "retriable" else [step("a")]
    definition = saga(*steps, step("b", kind=kind, do=op("act.b", {}, on="shop", retry=Retry(max_attempts=2))))
    world = World(definition, hold=["b"], restore=restore).start()
    for times in range(1, 41):
        lose(world, "b")
        assert row(world, "b")["attempts"] == 0
        assert row(world, "b")["error"]["details"] == {"uncounted": times}
        world.fire("b~retry")
    assert world.now == START + 40 * 60
    assert world.undone == []
    world.end("b", ("done", 1))
    assert (world.state, row(world, "b")["attempts"]) == ("COMPLETED", 1)
    assert reported_reasons(world.story) == []


def test_it_is_told_as_stuck() -> None:
    world = World(saga(step("a")), hold=["a"]).start()
    lose(world, "a")
    assert reported_reasons(world.story) == ["a could not be tried, once: the runner was killed"]
    lose(world.fire("a~retry"), "a")
    assert reported_reasons(world.story) == ["a could not be tried, 2 times in a row: the runner was killed"]


def test_the_attempts_before_it_count() -> None:
    definition = saga(step("a"), step("b", do=op("act.b", {}, on="shop", retry=Retry(max_attempts=3))))
    world = World(definition, hold=["b"]).start()
    lose(world, "b", attempt=3)
    assert row(world, "b")["attempts"] == 2
    lose(world.fire("b~retry"), "b")
    world.fire("b~retry")
    assert world.call("b").retry.max_attempts == 1
    world.end("b", ("failed", 1))
    assert (world.state, row(world, "b")["attempts"]) == ("COMPENSATED", 3)


def test_a_cancel_meanwhile_leads_backward_and_there_is_nothing_to_undo() -> None:
    world = World(saga(step("a"), step("b")), hold=["b"]).start()
    lose(world, "b").cancel()
    assert (world.state, world.undone) == ("COMPENSATED", ["a"])
    assert row(world, "b")["state"] == "FAILED"


def test_a_pivot_that_was_cancelled_meanwhile_is_not_tried_again() -> None:
    world = World(saga(step("a"), step("p", kind="pivot")), hold=["p"]).start()
    world.cancel()
    lose(world, "p")
    assert world.state == "COMPENSATED"
    assert world.log == ["a", "p", "a~undo"]


def test_it_survives_the_wire() -> None:
    said = unavailable()
    failure = said.failure
    assert failure is not None
    assert decode_failure(failure.type, failure.message, encode_failure(said, 1)) == said
