"""What a run carries in its header, read once per worker: all runs of one definition carry the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sagas.definition.model import Definition
from sagas.definition.snapshot import from_snapshot
from sagas.machine.plan import Plan


@dataclass(frozen=True, slots=True)
class Carried:
    """A definition with its plan, the project's variables, and the search attributes the namespace has.

    Runs share it, so nobody may change what is in it.
    """

    definition: Definition
    plan: Plan
    variables: Mapping[str, Any]
    attributes: frozenset[str]


def carried(loaded: Mapping[str, Any]) -> Carried:
    """From what ``saga.load`` answers. Raises KeyError or TypeError for anything else."""
    definition = from_snapshot(loaded["definition"])
    attributes = frozenset(loaded.get("attributes", ()))
    return Carried(definition, Plan(definition), loaded.get("vars") or {}, attributes)


@lru_cache(maxsize=256)
def read_header(data: bytes) -> Carried:
    """From the JSON our client sends along; the cache also keeps the compiled expressions of the plan."""
    return carried(json.loads(data))
