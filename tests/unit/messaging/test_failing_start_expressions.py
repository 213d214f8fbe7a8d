"""The `id` and the labels of a definition that fail for an input: no reason quotes a part of a sensitive value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from saga_workers.start.saga_starter import SagaStarter
from sagas.definition.model import Definition
from sagas.errors import UsageError
from sagas.settings.signing_keys import SigningKeys

PART = "${{ string(int(input.card.split('-')[1])) }}"


@pytest.mark.parametrize("given", [{"id": PART}, {"labels": {"part": PART}}])
@pytest.mark.parametrize("is_sensitive", [True, False])
def test_the_reason_is_shown_unless_the_saga_has_sensitive_values(given: Any, is_sensitive: bool) -> None:
    locator: Any = SimpleNamespace(temporal=None, ledger=None, within_temporal=lambda: locator)
    card = {"type": "string"} | ({"x-sensitive": True} if is_sensitive else {})
    schema = {"type": "object", "properties": {"card": card}}
    definition = Definition("pay", (), input=schema, **given)
    starter = SagaStarter(locator, definition, task_queue="pay", keys=SigningKeys(()))
    with pytest.raises(UsageError, match="cannot be evaluated for this input") as refused:
        starter.make_request({"card": "4000-kanari"})
    assert ("kanari" in refused.value.message) is not is_sensitive
    assert ("the reason may quote an x-sensitive value, and is not shown" in refused.value.message) is is_sensitive
