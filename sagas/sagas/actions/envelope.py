"""The argument that carries the envelope of a call."""

from __future__ import annotations

ENVELOPE = "_saga"
"""The argument, next to those of ``with``, that carries the call's envelope to every participant."""
