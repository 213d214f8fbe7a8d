"""Headers that the engine writes cannot be set: an attempt is an error, and nothing is overwritten silently."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from saga_activities.messaging.outbox import read_events
from saga_workers.trigger.bridge_function import run_bridge_function
from saga_workers.trigger.consumed_record import ConsumedRecord
from sagas.actions.consumers import Bridge, Message
from sagas.actions.events import Event
from sagas.actions.step import Step
from sagas.errors import UsageError
from sagas.protocol.payloads import Invocation

Emit = Callable[[Mapping[str, Any]], Any]


def _step(headers: Mapping[str, Any]) -> Any:
    step = Step("k", "s", "pay", "do", 1, 1, logging.getLogger(), print, _sql=object())
    step.emit("orders", value=1, headers=headers)
    return step.events


def _consumer(headers: Mapping[str, Any]) -> Any:
    message = Message("1", "orders", 0, 0, "", None, 1, {}, _sql=object())
    message.emit("orders", value=1, headers=headers)
    return message.events


def _built_in(headers: Mapping[str, Any]) -> Any:
    invocation = Invocation("kafka.publish", {}, "k", "s", "pay", "do", 1)
    return read_events([{"topic": "orders", "value": 1, "headers": headers}], invocation)


@pytest.mark.parametrize("emit", [_step, _consumer, _built_in])
@pytest.mark.parametrize("name", ["ce_id", "CE_Type", "sagaid", "sagastep", "saganew", "content-type"])
def test_reserved_headers_are_refused(emit: Emit, name: str) -> None:
    with pytest.raises(UsageError) as reported:
        emit({"kind": "receipt", name: "mine"})
    assert reported.value.message == f"the header `{name}` of an event is reserved for the engine: choose another name"


@pytest.mark.parametrize("emit", [_step, _consumer, _built_in])
def test_reply_headers_are_allowed(emit: Emit) -> None:
    reply = {"sagareplyto": "answers", "sagakey": "s/ask", "sagatoken": "t", "sagaoutcome": "rejected"}
    headers = {"kind": "x", "traceparent": "t", **reply}
    [event] = emit(headers)
    assert event.headers == headers


class Read:
    """A record as the client library gives it."""

    def __getattr__(self, name: str) -> Any:
        given: dict[str, Any] = {
            "topic": "raw",
            "partition": 0,
            "offset": 7,
            "key": b"k",
            "value": b"1",
            "headers": [("ce_id", b"one"), ("ce_source", b"/till"), ("kind", b"x")],
            "timestamp": (1, 1_700_000_000_000),
        }
        return lambda: given[name]


def test_a_bridge_may_forward_but_not_change_reserved_headers() -> None:
    def split(message: Message) -> list[Event]:
        return [Event("clean", "k", n, {**message.headers, "part": str(n)}) for n in range(2)]

    made = run_bridge_function(Bridge("split", "raw", "clean", split, 5), ConsumedRecord(Read()), "group")  # pyright: ignore[reportArgumentType]
    assert made.dead_letter_reason is None
    headers = [dict(record["headers"]) for record in made.records]
    assert [(header["ce_source"], header["kind"], header["part"]) for header in headers] == [
        (b"/till", b"x", b"0"),
        (b"/till", b"x", b"1"),
    ]
    assert len({header["ce_id"] for header in headers}) == 2

    def forge(message: Message) -> Event:
        return Event("clean", "k", 1, {**message.headers, "ce_source": "/forged"})

    refused = run_bridge_function(Bridge("forge", "raw", "clean", forge, 1), ConsumedRecord(Read()), "group")  # pyright: ignore[reportArgumentType]
    assert refused.dead_letter_reason == (
        "the header `ce_source` of an event is reserved for the engine: choose another name"
    )
