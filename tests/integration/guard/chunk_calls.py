"""Calls of the sagas of a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sagas.protocol.messages import GuardSpec
from sagas.protocol.outcomes import Outcome
from sagas.protocol.payloads import Invocation, idempotency_key


def call(saga_id: str, uses: str = "note", timeout: float = 30.0, **arguments: Any) -> Invocation:
    key = idempotency_key(saga_id, "pay", 1, "")
    return Invocation(uses, arguments, key, saga_id, "pay", "do", 1, timeout, GuardSpec("shop"), saga="order")


def kinds(outcomes: Sequence[Outcome | None]) -> list[str]:
    return ["none" if outcome is None else outcome.kind for outcome in outcomes]
