"""JSON Schemas of Python types: the JSON values that an annotation takes, and those that it is written as.

pydantic generates them, except where its schema is wider or narrower than what a value means: a float holds only what a
double holds, times have microseconds and no unit of a year, keys of a mapping are written like values, and a validator
in the mode `before`, `wrap` or `plain` takes whatever its author lets in.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Literal

from pydantic_core import to_jsonable_python

from sagas.builtins.messaging import FORM_DESCRIPTION
from sagas.errors import UsageError
from sagas.text.exact_numbers import BINARY, comparable
from sagas.text.plain_schemas import is_certainly_valid

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6}0*)?"
_ZONE = r"([Zz]|[+-][0-9]{2}:[0-9]{2})?"
_SECONDS = r"[0-9]+(\.[0-9]{1,6}0*)?S"
_PERIOD = rf"P([0-9]+W|[0-9]+D|([0-9]+D)?T([0-9]+H([0-9]+M)?({_SECONDS})?|[0-9]+M({_SECONDS})?|{_SECONDS}))"


def _form(pattern: str, words: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^({pattern})$", FORM_DESCRIPTION: words}


_FORMS = {
    "date-time": _form(
        rf"{_DATE}[Tt ]{_TIME}{_ZONE}",
        "a date and a time with at most six digits after the point, such as 2026-05-01T10:00:00Z",
    ),
    "time": _form(f"{_TIME}{_ZONE}", "a time with at most six digits after the point, such as 10:00:00"),
    "duration": _form(
        rf"[+-]?{_PERIOD}|(-?[0-9]+ days?,? )?-?{_TIME}|-?[0-9]+ days?",
        "a duration in days and smaller units with at most six digits after the point, such as P1DT2H",
    ),
}
"""The forms of text that pydantic reads exactly. It also takes numbers, as seconds since 1970, and cuts or rounds
digits beyond the sixth; these are refused."""

_KEYS = {
    "integer": _form("0|-?[1-9][0-9]*", "a whole number without leading zeros"),
    "number": _form(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([Ee][+-]?[0-9]+)?", "a number"),
    "boolean": {"enum": ["true", "false"]},
}
"""The texts of keys, which are strings in JSON."""

_SCALARS = (str, int, bool, float, Decimal)
"""The types of most arguments: the adapter and the schema of each are made once."""


def type_adapter(annotation: Any) -> Any:
    """The pydantic adapter of a type. Raises what pydantic raises, and what the code of an annotated class raises."""
    from pydantic import TypeAdapter

    return _scalar_adapter(annotation) if annotation in _SCALARS else TypeAdapter(annotation)


@cache
def _scalar_adapter(scalar: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(scalar)


def argument_schema(annotation: Any, adapter: Any) -> dict[str, Any]:
    """The JSON Schema of the values of an argument, given the adapter of its type. Raises as :func:`type_schema`."""
    return _scalar_schema(annotation) if annotation in _SCALARS else type_schema(adapter, "validation")


@cache
def _scalar_schema(scalar: type) -> dict[str, Any]:
    return type_schema(_scalar_adapter(scalar), "validation")


def type_schema(adapter: Any, mode: Literal["validation", "serialization"]) -> dict[str, Any]:
    """The JSON Schema of a type, given pydantic's adapter for it.

    Raises UsageError for one that its author has written (``WithJsonSchema``), and that is none.
    """
    schema = adapter.json_schema(mode=mode, schema_generator=_generator())
    if not is_certainly_valid(schema):
        _require_schema(schema)
    return schema


def _require_schema(schema: dict[str, Any]) -> None:
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(comparable(schema))
    except SchemaError as error:
        where = ".".join(map(str, error.absolute_path)) or "the schema"
        raise UsageError(f"the author's schema is not valid at `{where}`: {error.message}") from None


@cache
def _generator() -> Any:
    # Imported here: pydantic's own import takes a quarter of a second, and most commands have no such type.
    from pydantic.json_schema import GenerateJsonSchema

    class ExactSchemas(GenerateJsonSchema):
        def float_schema(self, schema: Any) -> dict[str, Any]:
            return {**super().float_schema(schema), BINARY: True}

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            number = super().float_schema(schema)
            # Text also has all digits: a receiver that reads numbers as doubles passes decimals so.
            return number if self.mode == "serialization" else {"anyOf": [number, dict(_KEYS["number"])]}

        def datetime_schema(self, schema: Any) -> dict[str, Any]:
            return dict(_FORMS["date-time"])

        def time_schema(self, schema: Any) -> dict[str, Any]:
            return dict(_FORMS["time"])

        def timedelta_schema(self, schema: Any) -> dict[str, Any]:
            generated = super().timedelta_schema(schema)
            return dict(_FORMS["duration"]) if generated.get("type") == "string" else generated

        def str_schema(self, schema: Any) -> dict[str, Any]:
            generated = super().str_schema(schema)
            if self._config.regex_engine == "python-re":  # RE2 cannot read all of its patterns; pydantic checks it
                generated.pop("pattern", None)
            return generated

        def enum_schema(self, schema: Any) -> dict[str, Any]:
            generated = super().enum_schema(schema)
            values = [member.value for member in schema["members"]]
            if any(isinstance(value, Decimal | float) for value in values):
                generated.pop("type", None)
            exact = [Decimal(repr(value)) if isinstance(value, float) else value for value in values]
            numbers = [value if isinstance(value, Decimal) else to_jsonable_python(value) for value in exact]
            return {**generated, "enum": numbers}

        def function_before_schema(self, schema: Any) -> dict[str, Any]:
            return super().function_before_schema(schema) if self._is_declared(schema) else {}

        def function_wrap_schema(self, schema: Any) -> dict[str, Any]:
            return super().function_wrap_schema(schema) if self._is_declared(schema) else {}

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
            return {}

        def model_fields_schema(self, schema: Any) -> dict[str, Any]:
            return self._with_all_names(super().model_fields_schema(schema), list(schema["fields"].items()))

        def dataclass_args_schema(self, schema: Any) -> dict[str, Any]:
            fields = [(field["name"], field) for field in schema["fields"]]
            return self._with_all_names(super().dataclass_args_schema(schema), fields)

        def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
            return self._with_all_names(super().typed_dict_schema(schema), list(schema["fields"].items()))

        def _common_dict_schema(self, schema: Any) -> dict[str, Any]:
            generated = super()._common_dict_schema(schema)
            keys = self.generate_inner(schema["keys_schema"]) if "keys_schema" in schema else {}
            for values in generated.pop("patternProperties", {}).values():  # other keys would have any values
                generated["additionalProperties"] = values
            generated.pop("propertyNames", None)
            names = _names(keys)
            return generated if names in ({}, {"type": "string"}) else {**generated, "propertyNames": names}

        def _is_declared(self, schema: Any) -> bool:
            """Return whether the validator's input is known: as results, by its author, or from pydantic itself."""
            module = str(getattr(schema["function"]["function"], "__module__", ""))
            own = module.partition(".")[0] == "pydantic"
            return self.mode == "serialization" or own or "json_schema_input_schema" in schema

        def _with_all_names(self, generated: dict[str, Any], fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
            """The schema of an object with each name by which pydantic fills a field, one of them at a time."""
            if self.mode == "serialization":
                return generated
            properties, by_name = generated.get("properties", {}), self._config.validate_by_name
            for name, field in fields:
                alias = field.get("validation_alias", name)
                paths = [alias] if isinstance(alias, str) else [path[0] for path in alias if len(path) == 1]
                names = list(dict.fromkeys([*paths, *([name] if by_name or self._config.populate_by_name else [])]))
                shown = next((each for each in names if each in properties), None)
                if shown is None or len(names) == 1:
                    continue
                for other in names:
                    properties.setdefault(other, properties[shown])
                alternatives = [{"required": [each]} for each in names]
                if shown in generated.get("required", []):
                    generated["required"] = [each for each in generated["required"] if each != shown]
                    generated.setdefault("allOf", []).append({"oneOf": alternatives})
                else:
                    absent = {"not": {"anyOf": alternatives}}
                    generated.setdefault("allOf", []).append({"oneOf": [*alternatives, absent]})
            return generated

    return ExactSchemas


def _names(keys: Any) -> dict[str, Any]:
    """The schema of the names of an object, given that of the keys of a mapping."""
    if "anyOf" in keys:
        return {"anyOf": [_names(part) for part in keys["anyOf"]]}
    written = _KEYS.get(keys.get("type", ""))
    return {key: value for key, value in keys.items() if key != "title"} if written is None else dict(written)
