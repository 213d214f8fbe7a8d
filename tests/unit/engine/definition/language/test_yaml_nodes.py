"""YAML 1.2 with positions, the same with the C event stream and with the pure parser."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sagas.definition.diagnostics import Report
from sagas.definition.parser import yaml_nodes
from sagas.definition.parser.yaml_errors import unquoted_expression
from sagas.definition.parser.yaml_nodes import YamlNode, load_yaml


@pytest.fixture(params=["c", "pure"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "pure":
        monkeypatch.setattr(yaml_nodes, "CParser", None)
    else:
        assert yaml_nodes.CParser is not None, "ruamel.yaml.clib is not installed"
    return request.param


def read(text: str) -> YamlNode:
    report = Report("a.yaml")
    node = load_yaml(text, report)
    assert node is not None, report.diagnostics
    return node


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),  # YAML 1.1 would make a boolean of it
        ("on", "on"),
        ("2026-01-01", "2026-01-01"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("12", 12),
        ("0o14", 12),
        ("0xC", 12),
        ("1_000", "1_000"),
        ("1.50", Decimal("1.50")),
        ("1e3", Decimal("1e3")),
        ("-0.0", Decimal("-0.0")),
        ("123456789012345678.123456789", Decimal("123456789012345678.123456789")),
        ("12:30:45", "12:30:45"),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("!!float 12", Decimal(12)),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        (">-\n  folded\n  text\n", "folded text"),
        ("${{ input.a }}", "${{ input.a }}"),
        ('"a\\u00e9"', "aé"),
    ],
)
def test_scalars(parser: str, text: str, value: Any) -> None:
    scalar = read(f"a: {text}").to_json()["a"]
    assert scalar == value
    assert type(scalar) is type(value)
    assert str(scalar) == str(value)


@pytest.mark.parametrize("text", ["0123", "00", "-07", "007.5", "01e2", "+01"])
def test_a_number_with_a_leading_zero_is_refused(parser: str, text: str) -> None:
    report = Report("a.yaml")
    assert load_yaml(f"a:\n  - {text}\n", report) is None
    [diagnostic] = report.diagnostics
    assert (diagnostic.code, diagnostic.line, diagnostic.column) == ("SAGA100", 2, 5)
    assert "quote it" in (diagnostic.help or "")
    assert read(f"a: '{text}'").to_json() == {"a": text}


def test_places(parser: str) -> None:
    node = read("é: ü\nlist:\n  - {a: 1, b: 'x'}\n")
    item = node.value["list"].value[0]
    assert (item.line, item.column) == (3, 5)
    assert (item.key_position("b").line, item.key_position("b").column) == (3, 12)
    assert (item.value["b"].line, item.value["b"].column) == (3, 15)
    assert item.value["b"].position_at(0).column == 16


def test_anchors_and_merge_keys(parser: str) -> None:
    node = read("a: &base {x: 1, y: 2}\nb: {<<: *base, y: 3}\nc: {<<: [{x: 9}, *base]}\nd: *base\n")
    assert node.to_json() == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 9, "y": 2},
        "d": {"x": 1, "y": 2},
    }


def test_an_alias_bomb_is_refused(parser: str) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    report = Report("a.yaml")
    assert load_yaml("\n".join(lines), report) is None
    assert [diagnostic.code for diagnostic in report.diagnostics] == ["SAGA100"]


def test_deep_nesting_is_refused(parser: str) -> None:
    report = Report("a.yaml")
    assert load_yaml("a: " + "[" * 150 + "]" * 150, report) is None
    assert "nested deeper" in report.diagnostics[0].message


@pytest.mark.parametrize("text", ["a: [", "a: 'x", "\tb: 1", "a: b: c", "a\n  b: c", "a: \x00", "%YAML 3.0\n--- a"])
def test_invalid_yaml_gives_a_one_line_error(parser: str, text: str) -> None:
    report = Report("a.yaml")
    load_yaml(text, report)
    assert all("\n" not in diagnostic.message for diagnostic in report.diagnostics)


@pytest.mark.parametrize(
    "line",
    [
        "with: {a: ${{ input.a }}}",
        "with: [${{ input.a }}, 1]",
        "if: ${{ a ? b : c }}",
        "if: ${{ a # b }}",
        "- ${{ {'a': 1} }}",
    ],
)
def test_an_unquoted_expression_is_explained(parser: str, line: str) -> None:
    report = Report("a.yaml")
    load_yaml(line, report)
    assert [diagnostic.code for diagnostic in report.diagnostics] == ["SAGA101"], report.diagnostics


class Line(str):
    """A line that is read once: a copy of its beginning at each quote would take quadratic time."""

    __slots__ = ()

    def __getitem__(self, key: object) -> str:
        raise AssertionError("copied")


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ('"a" : "${{ x }}"', None),
        ("a: [1, \t'${{ x }}']", None),
        ('a: x"${{ y }}"', 5),
        ("a: 'b' ${{ c }}", 7),
        ("x'" * 1_000 + "${{ y }}", 2_000),
    ],
)
def test_a_malformed_line_is_read_once(line: str, column: int | None) -> None:
    assert unquoted_expression(Line(line)) == column


def test_a_quoted_expression_next_to_a_mistake_is_not_blamed(parser: str) -> None:
    report = Report("a.yaml")
    load_yaml('a: {b: "${{ input.a }}", c: [}', report)
    assert [diagnostic.code for diagnostic in report.diagnostics] == ["SAGA100"]


@pytest.mark.parametrize("text", ['a: "\\ud800"', '"\\ud800": a', 'a: ["b\\udfff"]'])
def test_half_a_surrogate_pair_is_a_mistake(parser: str, text: str) -> None:
    report = Report("a.yaml")
    assert load_yaml(text, report) is None
    assert [(diagnostic.code, diagnostic.message) for diagnostic in report.diagnostics] == [
        ("SAGA100", "the text has half a surrogate pair, which is not a character")
    ]


def test_two_escapes_of_one_character_are_this_character(parser: str) -> None:
    """JSON writes characters beyond U+FFFF so, and JSON is YAML."""
    node = read('{"a\\ud83d\\ude00": ["\\ud83d\\ude00 b"]}')
    assert [(key, [item.value for item in value.value]) for key, value in node.value.items()] == [("a😀", ["😀 b"])]


@pytest.mark.parametrize(
    ("prefix", "digit", "most"), [("", "9", 4_000), ("-", "9", 4_000), ("0x", "f", 2_998), ("0o", "7", 2_998)]
)
def test_an_integer_has_as_many_digits_as_one_in_json(prefix: str, digit: str, most: int) -> None:
    written = prefix + digit * most
    assert read(f"a: {written}").to_json() == {"a": int(written, 0)}
    report = Report("a.yaml")
    assert load_yaml(f"a: {written}{digit}", report) is None
    assert [each.code for each in report.diagnostics] == ["SAGA100"]
