"""All definitions of a project in two versions of it: which are new, gone or changed, and what that means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sagas.definition.diagnostics import Diagnostic
from sagas.definition.model import Definition
from sagas.presentation.change_places import FieldPlace, line_of_change
from sagas.presentation.definition_diff import Change, DefinitionDiff, compare_definitions, needed_names
from sagas.text.records import pack_record, restore_record

Fate = Literal["added", "removed", "changed", "unreadable", "same"]


@dataclass(frozen=True, slots=True)
class PlacedDefinition:
    """A definition in its place: ``file`` relative to the project; the lines in ``root`` and, by id, ``steps``."""

    definition: Definition
    file: str
    root: FieldPlace
    steps: Mapping[str, FieldPlace]

    def line_of(self, change: Change) -> int:
        """The line of a change whose new version this is."""
        return line_of_change(change, self.root, self.steps)


@dataclass(frozen=True, slots=True)
class ProjectDefinitions:
    """The definitions of one version of a project, by saga name, and the errors of those that are missing in it."""

    definitions: Mapping[str, PlacedDefinition]
    errors: Sequence[Diagnostic]

    def to_json(self) -> dict[str, Any]:
        """The definitions as JSON data; ``from_json`` returns equal ones.

        Unlike the snapshot of a run they have their triggers and schedules, which are compared as well.
        """
        return {
            "definitions": [
                {
                    "definition": pack_record(placed.definition, every_field=True),
                    "file": placed.file,
                    "root": placed.root.to_json(),
                    "steps": {id: step.to_json() for id, step in placed.steps.items()},
                }
                for placed in self.definitions.values()
            ],
            "errors": [error.to_json() for error in self.errors],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProjectDefinitions:
        """Restore what ``to_json`` returned."""
        placed = [
            PlacedDefinition(
                restore_record(Definition, entry["definition"]),
                entry["file"],
                FieldPlace.from_json(entry["root"]),
                {id: FieldPlace.from_json(step) for id, step in entry["steps"].items()},
            )
            for entry in data["definitions"]
        ]
        return cls(
            {entry.definition.saga: entry for entry in placed}, [Diagnostic(**error) for error in data["errors"]]
        )


@dataclass(frozen=True, slots=True)
class SagaDiff:
    """The difference of one saga. ``old`` and ``new`` are None where it is not; ``difference`` if it is in both.

    ``unreadable``: one of the versions has an error in the file of this saga.
    """

    saga: str
    fate: Fate
    old: PlacedDefinition | None
    new: PlacedDefinition | None
    difference: DefinitionDiff | None = None

    @property
    def changes(self) -> Sequence[Change]:
        """The changes of its fields and steps."""
        return self.difference.changes if self.difference is not None else ()

    @property
    def still_needed(self) -> Mapping[str, Sequence[str]]:
        """Names that running sagas need, by kind: of a removed saga all, else those that only the old version has."""
        if self.difference is not None:
            return self.difference.still_needed
        if self.fate != "removed" or self.old is None:
            return {}
        return {kind: sorted(names) for kind, names in needed_names(self.old.definition).items()}

    def to_json(self) -> dict[str, Any]:
        """An entry of `sagas` in the JSON document of `saga diff`."""
        place = self.new or self.old
        document: dict[str, Any] = {"saga": self.saga, "file": place.file if place else None, "change": self.fate}
        if self.difference is not None:
            return document | self.difference.to_json()
        return document | ({"running_sagas": {"still_needed": self.still_needed}} if self.fate == "removed" else {})


@dataclass(frozen=True, slots=True)
class ProjectDiff:
    """The differences of all sagas by name, and the errors of both versions."""

    sagas: Sequence[SagaDiff]
    old_errors: Sequence[Diagnostic]
    new_errors: Sequence[Diagnostic]

    @property
    def is_same(self) -> bool:
        """All sagas do the same in both versions, and all could be read."""
        return not (self.old_errors or self.new_errors) and all(saga.fate == "same" for saga in self.sagas)

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `saga diff` for two revisions."""
        return {
            "same": self.is_same,
            "sagas": [saga.to_json() for saga in self.sagas if saga.fate != "same"],
            "unchanged": sum(saga.fate == "same" for saga in self.sagas),
            "old_errors": [error.to_json() for error in self.old_errors],
            "new_errors": [error.to_json() for error in self.new_errors],
        }


def compare_projects(old: ProjectDefinitions, new: ProjectDefinitions) -> ProjectDiff:
    """Compare the definitions of two versions of a project, each checked against its own actions and connections."""
    names = sorted({*old.definitions, *new.definitions})
    sagas = [_compare_saga(name, old, new) for name in names]
    return ProjectDiff(sagas, old.errors, new.errors)


def _compare_saga(name: str, old: ProjectDefinitions, new: ProjectDefinitions) -> SagaDiff:
    before, after = old.definitions.get(name), new.definitions.get(name)
    if before is not None and after is not None:
        difference = compare_definitions(before.definition, after.definition)
        return SagaDiff(name, "same" if difference.is_same else "changed", before, after, difference)
    present, missing_in = (before, new) if after is None else (after, old)
    if present is not None and any(error.file == present.file for error in missing_in.errors):
        return SagaDiff(name, "unreadable", before, after)
    return SagaDiff(name, "removed" if after is None else "added", before, after)
