"""The saga machine: pure, deterministic, serialisable. See machine.py."""

from __future__ import annotations
