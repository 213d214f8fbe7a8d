"""The address of the console, whose pages look for a session in place of a token."""

from __future__ import annotations

ROOT = "/console"


def is_console_path(path: str) -> bool:
    return path == ROOT or path.startswith(f"{ROOT}/")
