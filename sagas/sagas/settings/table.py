"""A table of saga.toml as a pydantic model: each key is a field with its type, default, meaning and example.

A field with a description is a key; the loader sets the others, which the file cannot have. The reference page, the
JSON Schema for editors and the variables of the environment come from the same fields.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema

from sagas.errors import did_you_mean
from sagas.settings.forms import TABLE, Form, is_table, to_toml
from sagas.settings.wrong_setting import WrongSetting

MISSING = "is missing"
NO_TABLE = "must be a table"


class Table(BaseModel):
    """The base of all tables. ``heading``, ``title`` and ``summary`` are for the reference page.

    :meth:`read` reads what is written in the file, in the forms of the file; the constructor takes values.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, populate_by_name=True, hide_input_in_errors=True
    )

    heading: ClassVar[str] = ""
    title: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    @classmethod
    def read(cls, written: Any) -> Self:
        """Read a table of the file. Raises WrongSetting, whose setting is relative to the table."""
        try:
            return cls.model_validate(written, context="file")
        except ValidationError as error:
            raise first_mistake(error) from None

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The JSON Schema for editors: the keys alone."""
        own = handler.resolve_ref_schema(handler(schema))
        own["properties"] = {name: own["properties"][name] for name, _ in keys(cls)}
        for item in own["properties"].values():
            item.pop("title", None)
            if not item.get("examples"):
                item.pop("examples", None)
            if item.get("default") is None or isinstance(item["default"], dict):
                item.pop("default", None)
        own["description"] = cls.summary or inspect.getdoc(cls)
        own.pop("title", None)
        return own

    @model_validator(mode="wrap")
    @classmethod
    def _name_key(cls, written: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Say which key is wrong, and show its example."""
        if info.context is None or isinstance(written, Table):
            return handler(written)
        if not isinstance(written, Mapping):
            raise WrongSetting("", NO_TABLE)
        fields = dict(keys(cls))
        for key in written:
            if key not in fields:
                what = f": unknown setting {key}{did_you_mean(key, fields)}"
                raise WrongSetting("", what, is_table=True, unknown=key)
        try:
            return handler(written)
        except ValidationError as error:
            mistake = first_mistake(error)
            example = example_of(fields[mistake.setting]) if mistake.setting in fields else ""
            if example and mistake.shows_example:
                raise WrongSetting(mistake.setting, f"{mistake.what}, such as {mistake.setting} = {example}") from None
            if example and mistake.what == MISSING:
                raise WrongSetting(mistake.setting, MISSING, help=f"{mistake.setting} = {example}") from None
            raise mistake from None


REQUIRED: Any = ...
"""The default of a key that has none."""


def setting(default: Any, meaning: str, *examples: Any, **options: Any) -> Any:
    """A field that is a key. An example is a value as the file has it; without one the default is the example."""
    return Field(default, description=meaning, examples=list(examples), **options)


def keys(table: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """The keys of a table, as they are written, with their fields."""
    for name, field in table.model_fields.items():
        if field.description is not None:
            yield field.alias or name, field


def form_of(field: FieldInfo) -> Form:
    """The form of a key; that of a model is a table."""
    models = (kind for kind in (field.annotation, *get_args(field.annotation)) if isinstance(kind, type))
    tables = (replace(TABLE, tables=(model,)) for model in models if issubclass(model, Table))
    return next(chain((item for item in field.metadata if isinstance(item, Form)), tables))


def first_mistake(error: ValidationError) -> WrongSetting:
    """The first mistake that pydantic reports, a wrong value before a missing one, with the path to it.

    No text of pydantic is shown.
    """
    mistakes = error.errors(include_url=False, include_input=False)
    first = next((mistake for mistake in mistakes if mistake["type"] != "missing"), mistakes[0])
    mistake = first.get("ctx", {}).get("error")
    if not isinstance(mistake, WrongSetting):
        what = MISSING if first["type"] == "missing" else "has a wrong value"
        mistake = WrongSetting("", what)
    return mistake.within(*map(str, first["loc"]))


def example_of(field: FieldInfo) -> str:
    """The example of a key as TOML, else its default; empty if it has neither."""
    example = next(iter(field.examples or ()), None if field.is_required() else field.get_default())
    return "" if example in (None, {}, ()) or isinstance(example, Table) else to_toml(example)


def named_tables(read: Callable[[Mapping[str, Any]], Any], *models: type[Table]) -> Form:
    """A table of tables with names that the project chooses; ``read`` makes the value of one."""

    def read_all(written: Mapping[str, Any]) -> dict[str, Any]:
        tables = {}
        for name, inner in written.items():
            try:
                if not is_table(inner):
                    raise WrongSetting("", NO_TABLE)
                tables[name] = read(inner)
            except WrongSetting as error:
                raise error.within(name) from None
        return tables

    return replace(TABLE, read=read_all, json_schema={}, tables=models, is_named=True)


def array_of(model: type[Table], label: Callable[[int, Mapping[str, Any]], str]) -> Form:
    """An array of tables that have this model. ``label`` names one in messages, from its number and its content."""

    def allows(written: Any) -> bool:
        return isinstance(written, list) and all(is_table(item) for item in written)

    def read(written: list[Mapping[str, Any]]) -> list[Table]:
        tables = []
        for number, inner in enumerate(written, 1):
            try:
                tables.append(model.read(inner))
            except WrongSetting as error:
                key = f"`{error.setting}`" if error.what == MISSING else error.setting
                name = f"{label(number, inner)}: {key}" if key else label(number, inner)
                raise WrongSetting(name, error.what, help=error.help) from None
        return tables

    return Form("array of tables", allows, "a list of tables", read, tables=(model,))
