"""Converts a Definition to plain JSON and back without loss.

Snapshots are read inside Temporal workflows, so conversion only moves values: no validation and no schema. Fields
with their default value are left out, which keeps the header of a run small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sagas.definition.model import Definition
from sagas.text.records import pack_record, restore_record


def to_snapshot(definition: Definition) -> dict[str, Any]:
    """The definition as JSON data; ``from_snapshot`` returns an equal one."""
    return pack_record(definition)


def from_snapshot(data: Mapping[str, Any]) -> Definition:
    """The definition of a run. Raises KeyError or TypeError for invalid data."""
    return restore_record(Definition, data)
