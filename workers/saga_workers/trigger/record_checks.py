"""Reads and checks records within the budget of the process, off the event loop where that takes long."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from saga_activities.input_checks import INPUT_CHECKS
from saga_workers.trigger.consumed_record import ConsumedRecord, MalformedRecord
from saga_workers.trigger.retry import PoisonMessage
from sagas.actions.consumers import Message
from sagas.expressions.work_budget import TooComplex

_Read = TypeVar("_Read")


async def checked(record: ConsumedRecord, call: Callable[[], _Read], size: int = 0) -> _Read:
    """Return what the call reads of a record. Raises PoisonMessage if that takes too long, and what the call raises.

    Who writes to a topic is one caller, because its writers choose keys and partitions. ``size``: see
    :meth:`InputChecks.run`.
    """
    try:
        return await INPUT_CHECKS.run(call, caller=("topic", record.topic), size=size, aside=record.delivery.aside)
    except TooComplex as error:
        raise PoisonMessage(error.message) from None


async def read_message(record: ConsumedRecord) -> Message:
    """The message of a record. Raises PoisonMessage if a part of it cannot be used by anyone."""
    try:
        return await checked(record, record.message, len(record.value or b""))
    except MalformedRecord as error:
        raise PoisonMessage(str(error)) from None
