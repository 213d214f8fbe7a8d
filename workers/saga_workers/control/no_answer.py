"""The error of a request to a running saga, or to its bulk workflow, that no worker has answered."""

from __future__ import annotations

from sagas.errors import SagaError

MAY_STILL_HAPPEN = "a worker that returns soon may still process it"
"""Temporal keeps an update that no worker has accepted for as long as it has the run in memory."""


class NoAnswer(SagaError):
    """No worker has answered."""
