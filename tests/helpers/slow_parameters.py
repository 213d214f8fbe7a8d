"""Parameters of which `make test` takes only some: the others repeat what these show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest


def mostly_slow(names: Iterable[str], quick: Collection[str], values: Mapping[str, Any] | None = None) -> list[Any]:
    """A parameter for each name, or its value; all but the ``quick`` ones are slow."""
    return [
        pytest.param(name if values is None else values[name], id=name, marks=[] if name in quick else pytest.mark.slow)
        for name in names
    ]
