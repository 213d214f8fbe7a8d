"""The declaration of batch actions."""

from __future__ import annotations

import pytest

from sagas import BatchStep, Item, action
from sagas.actions.registry import ACTION_ATTRIBUTE, result_schema
from sagas.definition.action_arguments import bind
from sagas.errors import UsageError


def item(**arguments: object) -> Item:
    return Item(key="k", saga_id="s", id="take", op="do", attempt=1, generation=1, arguments=arguments)


def test_an_item_is_a_mapping_of_its_arguments() -> None:
    assert dict(item(id="a1", amount=3)) == {"id": "a1", "amount": 3}
    with pytest.raises(KeyError):
        item()["amount"]


def test_any_arguments_are_accepted_and_nothing_is_known_about_a_result() -> None:
    @action("take", connection="bank", batch=True)
    async def take(step: BatchStep, items: list[Item]) -> list[int]:
        return [1] * len(items)

    declared = getattr(take, ACTION_ATTRIBUTE)
    assert bind(declared, {"anything": 1}) == {"anything": 1}
    assert result_schema(declared) is None


def test_a_batch_action_needs_a_connection_and_is_a_coroutine_function() -> None:
    with pytest.raises(UsageError, match="has no connection"):
        action("take", batch=True)
    with pytest.raises(UsageError, match="is not a coroutine function"):

        @action("take", connection="bank", batch=True)
        def take(step: BatchStep, items: list[Item]) -> list[int]:
            return []


def test_an_event_that_may_not_be_held_is_refused() -> None:
    refusing = item()
    refusing._hold_refusal = "nothing would release it"
    with pytest.raises(UsageError, match="nothing would release it"):
        refusing.emit("orders", hold=True)
    refusing.emit("orders", value=1)
    assert [event.topic for event in refusing.events] == ["orders"]
