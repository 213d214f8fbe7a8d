"""The names of HTTP headers."""

from __future__ import annotations

import re

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def is_header_name(name: str) -> bool:
    return _HEADER_NAME.fullmatch(name) is not None
