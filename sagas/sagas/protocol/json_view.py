"""The parts of a view as frozen values with a JSON form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, Self, get_type_hints

from sagas.text.records import Accepts, Read, field_checks, field_readers

OMITTED = "omitted while there is none"
"""Marks a field that the document contains only while it is not None."""


class JsonView:
    """A part of the view. Its JSON form has the fields in their order; tuples become arrays."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        form = _json_form(type(self))
        document = dict(zip(form.names, form.values(self), strict=True))
        for name in form.readers:
            if document[name] is not None:
                document[name] = _encode(document[name])
        for name in form.omittable:
            if document[name] is None:
                del document[name]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Raises TypeError if a field without a default is missing, or has a value of another type."""
        form = _json_form(cls)
        values = {name: document[name] for name in form.names if document.get(name) is not None}
        for name, value in values.items():
            if not form.accepts[name](value):
                raise TypeError(f"the field {name} of a view has a value of another type")
        for name, read in form.readers.items():
            if name in values:
                values[name] = read(values[name])
        return cls(**values)


class _JsonForm(NamedTuple):
    """The JSON form of a class. ``readers``: those of the fields that contain parts or tuples."""

    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    readers: Mapping[str, Read]
    omittable: tuple[str, ...]
    accepts: Mapping[str, Accepts]


@cache
def _json_form(cls: type[Any]) -> _JsonForm:
    marked = get_type_hints(cls, include_extras=True)
    names = tuple(field.name for field in fields(cls))
    omittable = tuple(name for name in names if OMITTED in getattr(marked[name], "__metadata__", ()))
    return _JsonForm(names, attrgetter(*names), field_readers(cls), omittable, field_checks(cls))


def _encode(value: Any) -> Any:
    if isinstance(value, JsonView):
        return value.to_json()
    return [_encode(item) for item in value] if isinstance(value, tuple) else value
