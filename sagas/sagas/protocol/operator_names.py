"""The names of people who decide, cancel, pause or undo, as they are shown and recorded."""

from __future__ import annotations

UNVERIFIED = " (unverified)"


def recorded_name(who: str, *, proven: bool = False) -> str:
    """The name with a note, unless a signature of the project proves who has sent it: any client can give any name."""
    return who if proven else f"{who}{UNVERIFIED}"
