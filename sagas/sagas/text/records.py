"""Dataclasses as JSON and back.

The JSON has the fields that differ from their defaults, with tuples as arrays. Exact JSON reads fractions as decimals,
so a value of a field that is a ``float`` (a time or a duration) becomes one again. The types of the fields are read
once per class. No value is checked on the way, for JSON that the engine has written; :func:`field_checks` is for JSON
that others may have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Record = TypeVar("Record")
Read = Callable[[Any], Any]
Accepts = Callable[[Any], bool]

NOT_PACKED = {"packed": False}
"""The metadata of a field that is part of the JSON only if every field is."""


def pack_record(record: Any, *, every_field: bool = False) -> dict[str, Any]:
    """The JSON of a dataclass. Mutable values are shared with it: serialise it before it changes."""
    packed: dict[str, Any] = {}
    for name, default in _defaults(type(record), every_field):
        value = getattr(record, name)
        if value is not default and (value != default or type(value) is not type(default)):
            packed[name] = _pack(value, every_field)
    return packed


def _pack(value: Any, every_field: bool) -> Any:
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is list or kind is tuple:
        if value and is_dataclass(value[0]):
            return [pack_record(item, every_field=every_field) for item in value]
        return list(value) if kind is tuple else value
    if is_dataclass(kind):
        return pack_record(value, every_field=every_field)
    return dict(value) if isinstance(value, Mapping) else value


_AS_THEY_ARE = frozenset({str, int, float, bool, dict, type(None)})


@cache
def _defaults(record: type, every_field: bool) -> tuple[tuple[str, Any], ...]:
    """The packed fields with their defaults; MISSING is equal to no value."""
    return tuple(
        (field.name, field.default_factory() if field.default_factory is not MISSING else field.default)
        for field in fields(record)
        if every_field or field.metadata.get("packed", True)
    )


def restore_record(record: type[Record], packed: Mapping[str, Any]) -> Record:
    """The dataclass of its JSON. Raises TypeError for an unknown field, or without one that has no default."""
    values = dict(packed)
    for name, read in field_readers(record).items():
        if (value := values.get(name)) is not None:
            values[name] = read(value)
    return record(**values)


@cache
def field_readers(record: type) -> Mapping[str, Read]:
    """The functions that restore fields whose JSON is not their value: floats, tuples, and dataclasses.

    A dataclass with a method ``from_json`` is read by it.
    """
    return {name: read for name, hint in get_type_hints(record).items() if (read := _reader(hint)) is not None}


def _reader(hint: Any) -> Read | None:
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if kind is float:
            return float
        if isinstance(kind, type) and is_dataclass(kind):
            return getattr(kind, "from_json", None) or partial(_read_record, kind)
        if get_origin(kind) in (tuple, list):
            container: Callable[[Any], Any] = tuple if get_origin(kind) is tuple else list
            read = _reader(get_args(kind)[0])
            if read is not None:
                return partial(_read_items, container, read)
            return tuple if container is tuple else None
    return None


def _read_record(record: type, value: Any) -> Any:
    return value if isinstance(value, record) else restore_record(record, value)


def _read_items(container: Callable[[Any], Any], read: Read, values: Any) -> Any:
    return container(map(read, values))


@cache
def field_checks(record: type) -> Mapping[str, Accepts]:
    """For each field, whether a JSON value has its type. That a mapping can be a dataclass is left to its reader."""
    return {name: _check(hint) for name, hint in get_type_hints(record).items()}


def _check(hint: Any) -> Accepts:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda _: True
    if origin in (Union, UnionType):
        accepts = [_check(part) for part in parts]
        return lambda value: any(accept(value) for accept in accepts)
    if origin is Literal:
        types = tuple({type(part) for part in parts})
        return lambda value: type(value) in types  # a newer writer may know more of them
    if origin in (tuple, list):
        item = _check(parts[0])
        return lambda value: isinstance(value, list | tuple) and all(map(item, value))
    if origin is not None:  # a mapping
        item = _check(parts[1])
        return lambda value: isinstance(value, Mapping) and all(map(item, value.values()))
    if is_dataclass(hint):
        return lambda value: isinstance(value, Mapping | hint)  # pyright: ignore[reportArgumentType]
    if hint is float:
        return lambda value: isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    return lambda value: type(value) is hint
