"""Finds the lines of changes in a definition: those of the innermost field that differs and is still there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sagas.presentation.definition_diff import Change
from sagas.presentation.input_diff import differ


class LinePosition(Protocol):
    """A place in a file, such as that of a key."""

    @property
    def line(self) -> int: ...


class LocatedValue(Protocol):
    """A value of a file with its position, see :class:`sagas.definition.parser.yaml_nodes.YamlNode`."""

    line: int
    value: Any

    def key_position(self, name: str) -> LinePosition: ...


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """The line of a field, and the fields in it; the items of a list by their numbers."""

    line: int
    parts: Mapping[str, FieldPlace] = field(default_factory=dict)

    @classmethod
    def of(cls, node: LocatedValue, line: int | None = None) -> FieldPlace:
        """The place of a value. ``line``: that of its name, if it has one."""
        parts: dict[str, FieldPlace] = {}
        if isinstance(node.value, Mapping):
            parts = {name: cls.of(part, node.key_position(name).line) for name, part in node.value.items()}
        elif isinstance(node.value, list):
            parts = {str(number): cls.of(part) for number, part in enumerate(node.value)}
        return cls(node.line if line is None else line, parts)

    def innermost(self, path: Sequence[str]) -> tuple[FieldPlace, int]:
        """The place of the last field of a path that is there, and how many of the path are."""
        place = self
        for depth, name in enumerate(path):
            if name not in place.parts:
                return place, depth
            place = place.parts[name]
        return place, len(path)

    def to_json(self) -> list[Any]:
        """The place as JSON data; ``from_json`` returns an equal one."""
        return [self.line, {name: part.to_json() for name, part in self.parts.items()}]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> FieldPlace:
        """Restore what ``to_json`` returned."""
        line, parts = data
        return cls(line, {name: cls.from_json(part) for name, part in parts.items()})


def line_of_change(change: Change, root: FieldPlace, steps: Mapping[str, FieldPlace]) -> int:
    """The line of a change in the new version of a definition; that of what surrounds the field, if it is gone there.

    ``root``: the place of the definition; ``steps``: those of its steps, by id.
    """
    if change.step is None:
        if change.field == "commit_point" and change.new in steps:
            return steps[change.new].innermost(["pivot"])[0].line
        paths, owner = _paths_of_saga(change, root), root
    elif change.step in steps:
        paths, owner = [change.field.split(".")], steps[change.step]
    else:  # the step is gone
        return root.innermost(["steps"])[0].line
    places = [_find(owner, path, change) for path in paths]
    if change.step is not None:
        places += [_find(owner, path, change) for path in _other_paths_of_step(change.field)]
        place, depth = _find(root, ["defaults", *paths[0]], change)
        places.append((place, depth - 1))
    place, depth = max(places, key=lambda each: each[1])
    return place.line if depth > 0 else owner.line


def _find(owner: FieldPlace, path: Sequence[str], change: Change) -> tuple[FieldPlace, int]:
    place, depth = owner.innermost(path)
    if depth < len(path):
        return place, depth
    below, more = place.innermost(list(_path_of_difference(change.old, change.new)))
    return below, depth + more


def _paths_of_saga(change: Change, root: FieldPlace) -> list[list[str]]:
    match change.field.split(".", 1):
        case ["input", name]:
            optional = isinstance(change.new, str)  # `required` or `optional`
            return [["input", "required"]] if optional else [["input", "properties", name]]
        case ["commit_point"]:
            return [["recovery"]]
        case ["schedule"]:
            return [["triggers", "schedule"]]
        case ["triggers" | "triggers (signals)" as name]:
            kafka, _ = root.innermost(["triggers", "kafka"])
            signals = name != "triggers"
            numbers = [number for number, part in kafka.parts.items() if ("signal" in part.parts) == signals]
            differing = next(_path_of_difference(change.old, change.new), None)
            index = int(differing) if differing is not None and differing.isdecimal() else len(numbers)
            if "topic" in kafka.parts or index >= len(numbers):
                return [["triggers", "kafka"]]
            rest = list(_path_of_difference(change.old, change.new))[1:]
            return [["triggers", "kafka", numbers[index], *rest[:end]] for end in range(len(rest), -1, -1)]
        case path:
            return [path]


def _other_paths_of_step(field: str) -> list[list[str]]:
    """The paths under which a property of a step may be written, if not under its own name."""
    if field == "kind":
        return [["pivot"], ["effect"]]
    *prefix, name = field.split(".")
    return [[*prefix, "with", name]] if name == "connection" else []


def _path_of_difference(old: Any, new: Any) -> Iterator[str]:
    """The names that lead to the first value that differs; it ends where the new value has none."""
    while True:
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            names = [name for name in new if name not in old or differ(old[name], new[name])]
            if not names:
                return
            yield str(names[0])
            old, new = old.get(names[0]), new[names[0]]
        elif isinstance(old, list) and isinstance(new, list):
            number = next((at for at, item in enumerate(new) if at >= len(old) or differ(old[at], item)), None)
            if number is None:
                return
            yield str(number)
            old, new = old[number] if number < len(old) else None, new[number]
        else:
            return
