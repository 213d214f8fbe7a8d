"""Advice about a saga that was started again after its run was lost."""

from __future__ import annotations

CANCEL_OR_NOT = "then cancel it, or let it go on"
ONLY_FORWARD = "then it goes on: it is past its point of no return, so it cannot be cancelled"
CANCEL_BEFORE = "then let it go on, or cancel it, if it is not past its point of no return"
"""The advice if nobody knows here on which side of it the saga is."""
