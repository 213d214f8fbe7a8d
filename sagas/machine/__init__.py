"""The saga machine: pure, deterministic, serialisable. See machine.py."""

from __future__ import annotations

from sagas.machine.machine import Machine

__all__ = ["Machine"]
