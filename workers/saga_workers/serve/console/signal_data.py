"""The parts of a signal's data that a definition reads: the form that its data must have."""

from __future__ import annotations

import re

from sagas.definition.model import Definition
from sagas.definition.snapshot import to_snapshot
from sagas.text.exact_json import encode_json

_MOST = 30


def read_parts(definition: Definition, step: str) -> list[str]:
    """The paths below `data` that expressions read of the result of a `wait` step, such as ``approved.by``."""
    path = re.compile(rf"\bsteps\.{re.escape(step)}\.result\.data((?:\.\w+)+)")
    paths = path.findall(encode_json(to_snapshot(definition)).decode())
    return sorted({each.removeprefix(".") for each in paths})[:_MOST]
