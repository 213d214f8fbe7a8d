"""`--set`: JSON where it is JSON, a text where the definition wants one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from saga_cli.inputs import InvalidRows, read_input, read_rows
from saga_cli.main import _print_error
from sagas.errors import UsageError

SCHEMA: dict[str, Any] = {
    "properties": {
        "name": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "either": {"type": ["string", "integer"]},
        "count": {"type": "integer"},
        "inner": {"$ref": "#/$defs/inner"},
    },
    "$defs": {"inner": {"type": "object", "properties": {"zip": {"type": "string"}}}},
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
        ("count=x", {"count": "x"}),
        ("inner.zip=20095", {"inner": {"zip": "20095"}}),
        ("unknown=7", {"unknown": 7}),
        ("un.known=007", {"un": {"known": "007"}}),
    ],
)
def test_a_field(field: str, value: Any) -> None:
    assert read_input(None, [field], SCHEMA) == value


def test_without_a_schema_valid_json_is_parsed() -> None:
    assert read_input('{"a": 1}', ["b=2", "c=[1]", "d=x"]) == {"a": 1, "b": 2, "c": [1], "d": "x"}


def test_mistakes() -> None:
    with pytest.raises(UsageError, match="--set takes key=value"):
        read_input(None, ["name"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000 + "]" * 100_000, "--input is nested too deeply"),
        ("1" * 5_000, "--input has a number of more than 4,000 digits"),
    ],
)
def test_json_that_python_cannot_read_is_a_mistake(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_input(text, [])
    assert read_input(None, [f"a={text}"]) == {"a": text}


@pytest.mark.parametrize(
    ("name", "content", "mistake"),
    [
        ("a.jsonl", "[" * 100_000 + "]" * 100_000, "the row is nested too deeply"),
        ("a.jsonl", "1" * 5_000, "the row has a number of more than 4,000 digits"),
        ("a.csv", "a" * 131_073 + "\nx", "a.csv:1: field larger than field limit (131072)"),
        ("a.csv", "a,a.b\nx,y", "a.b: a is not an object, because another column has its value"),
    ],
)
def test_a_row_that_cannot_be_read_is_a_mistake(tmp_path: Path, name: str, content: str, mistake: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    rows, [found] = read_rows(tmp_path / name, {})
    assert rows == []
    assert found.endswith(mistake)


def test_an_input_that_is_no_file_is_a_mistake(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, mistake in (
        (str(tmp_path / "pipe"), "it is a pipe or a device, not a file"),
        ("/dev/zero", "it is a pipe or a device, not a file"),
        (str(tmp_path), "Is a directory"),
        ("x" * 5_000, "File name too long"),
    ):
        with pytest.raises(UsageError, match=mistake) as found:
            read_input(f"@{name}", [])
        assert len(found.value.message) < 500


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


@pytest.mark.parametrize("name", [".", "/dev/zero", "x" * 5_000])
def test_rows_come_from_files(name: str) -> None:
    with pytest.raises(UsageError, match=r"--from takes a file|there is no file") as found:
        read_rows(Path(name), {})
    assert len(found.value.message) < 500


def test_invalid_rows_are_reported_in_their_order_each_on_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = InvalidRows([f"my rows.jsonl:{n}: the input\nneeds `x`" for n in (30, 4, *range(40, 50))])
    assert _print_error(False, found) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        r"error: my rows.jsonl:4: the input\nneeds `x`",
        r"my rows.jsonl:30: the input\nneeds `x`",
    ]
    assert len(lines) == 12
    assert lines[-2:] == ["… and 2 more", "help: nothing was started; fix the file first"]
