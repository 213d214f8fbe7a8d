"""`--set`: JSON where it is JSON, a text where the definition wants one."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from saga_cli.input_columns import misspelled_fields
from saga_cli.inputs import read_input
from saga_cli.option_texts import parse_json
from sagas.errors import UsageError

SCHEMA: dict[str, Any] = {
    "properties": {
        "name": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "either": {"type": ["string", "integer"]},
        "count": {"type": "integer"},
        "inner": {"$ref": "#/$defs/inner"},
        "price": {"type": "number"},
        "chosen": {"oneOf": [{"type": "integer"}, {"type": "string", "pattern": "a"}]},
        "anchored": {"$ref": "#text"},
        "tagged": {"enum": [7, 8]},
        "dotted.name": {"type": "string"},
    },
    "$defs": {
        "text": {"$anchor": "text", "allOf": [{"type": "string"}]},
        "inner": {"type": "object", "properties": {"zip": {"type": "string"}}},
    },
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name=007", {"name": "007"}),
        ("name=7", {"name": "7"}),
        ("name=true", {"name": "true"}),
        ("name=null", {"name": "null"}),
        ('name={"a": 1}', {"name": '{"a": 1}'}),
        ('name="7"', {"name": "7"}),
        ("name=a b", {"name": "a b"}),
        ("name= a=b ", {"name": " a=b "}),
        ("name=", {"name": ""}),
        ("maybe=null", {"maybe": None}),
        ("either=7", {"either": 7}),
        ("count=7", {"count": 7}),
        ("unknown=1.10", {"unknown": Decimal("1.10")}),
        ("unknown=12345678901234567890.5", {"unknown": Decimal("12345678901234567890.5")}),
        ("unknown=123456789012345678901234567890", {"unknown": 123456789012345678901234567890}),
        ("price=1.10", {"price": Decimal("1.10")}),
        ("chosen=7", {"chosen": 7}),
        ("chosen=a", {"chosen": "a"}),
        ("anchored=007", {"anchored": "007"}),
        ("tagged=7", {"tagged": 7}),
        ("dotted.name=x", {"dotted.name": "x"}),
        ("inner.zip=20095", {"inner": {"zip": "20095"}}),
        ("unknown=7", {"unknown": 7}),
        ("un.known=007", {"un": {"known": "007"}}),
    ],
)
def test_a_field(field: str, value: Any) -> None:
    assert read_input(None, [field], SCHEMA) == value


def test_without_a_schema_valid_json_is_parsed() -> None:
    assert read_input('{"a": 1}', ["b=2", "c=[1]", "d=x"]) == {"a": 1, "b": 2, "c": [1], "d": "x"}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("name", "--set takes key=value"),
        ("count=x", "--set count: 'x' is not a whole number"),
        ("count=007", "--set count: '007' is not a whole number: it has a leading zero; leave it out, or declare"),
        ("price=1,5", "--set price: '1,5' is not a number"),
        ("price=NaN", "--set price: 'NaN' is not a number"),
        ("inner..zip=1", "has an empty name"),
    ],
)
def test_mistakes(field: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        read_input(None, [field], SCHEMA)


def test_a_key_and_a_value_for_an_option_of_json_are_explained() -> None:
    with pytest.raises(UsageError, match="--with is not JSON") as caught:
        parse_json("id=5", "--with")
    assert caught.value.help == """write an object of names and values: '{"name": "value"}'"""


def test_the_types_that_apply_only_sometimes_count_where_no_other_does() -> None:
    schema = {"oneOf": [{"properties": {"n": {"type": "integer"}}}, {"properties": {"name": {"type": "string"}}}]}
    assert read_input(None, ["n=7", "name=7"], schema) == {"n": 7, "name": "7"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "--input is nested too deeply"),
        ("1" * 5_000, "--input cannot be read: the number 1+… has more than 4,000 digits"),
        ('{"a": {"no": 1, "no": 2}}', "--input cannot be read: the name 'no' appears twice in one object"),
    ],
)
def test_json_that_python_cannot_read_is_a_mistake(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_input(text, [])
    with pytest.raises(UsageError, match="--set a: "):
        read_input(None, [f"a={text}"])


def test_an_input_that_is_no_file_is_a_mistake(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, mistake in (
        (str(tmp_path / "pipe"), "it is a pipe or a device, not a file"),
        ("/dev/zero", "it is a pipe or a device, not a file"),
        (str(tmp_path), "Is a directory"),
        ("x" * 5_000, "File name too long"),
    ):
        with pytest.raises(UsageError, match=mistake) as raised:
            read_input(f"@{name}", [])
        assert len(raised.value.message) < 500


def test_an_input_may_come_from_the_shell(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b'{"a": 1}')
    os.close(writer)
    assert read_input(f"@/dev/fd/{reader}", []) == {"a": 1}
    os.close(reader)


def test_an_input_of_any_size_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text(" " * 5_000_001)
    with pytest.raises(UsageError, match="it is larger than 5,000,000 bytes"):
        read_input(f"@{tmp_path / 'large.json'}", [])


@pytest.mark.parametrize(
    ("value", "warnings"),
    [
        ({"nmae": 1}, ["the schema of the input does not declare the field nmae; did you mean name?"]),
        ({"nmae": 1, "name": "ann", "other": 2}, []),
        ([1], []),
    ],
)
def test_a_field_that_resembles_a_declared_one(value: Any, warnings: list[str]) -> None:
    assert list(misspelled_fields(value, {"properties": {"name": {"type": "string"}}})) == warnings


def test_a_field_that_cannot_be_read_as_it_is_written_is_refused() -> None:
    """Without a declared string nothing says that JSON is meant as text."""
    for written in ('{"a": 1, "a": 2}', "1e999999999"):
        with pytest.raises(UsageError, match=r"^--set doc: "):
            read_input(None, [f"doc={written}"])
        assert read_input(None, [f"doc={written}"], {"properties": {"doc": {"type": "string"}}}) == {"doc": written}
    assert read_input(None, ["doc={a: 1}"]) == {"doc": "{a: 1}"}


def test_a_field_that_is_set_twice_is_an_error() -> None:
    with pytest.raises(UsageError, match="--set n is given twice"):
        read_input(None, ["n=77", "n=78"])
