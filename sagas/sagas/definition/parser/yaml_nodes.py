"""Parses YAML 1.2 into nodes with positions.

ruamel.yaml scans the text: with its C event stream if that is installed (thirty times faster), otherwise with its pure
Python parser, which also re-reads invalid text because its errors are clearer. The events become :class:`YamlNode`
trees here, so that anchors, merge keys and the YAML 1.2 core types have the same meaning with both parsers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from sagas.definition.diagnostics import Position, Report
from sagas.definition.parser.yaml_errors import report_yaml_error
from sagas.input_limits import (
    MAX_DEFINITION_CHARACTERS,
    MAX_DEFINITION_NODES,
    MAX_INTEGER_DIGITS,
    MAX_JSON_DEPTH,
    MAX_PREFIXED_DIGITS,
)
from sagas.text.exact_json import exact_number
from sagas.text.shortening import shorten

try:
    from _ruamel_yaml import CParser  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
except ImportError:  # no wheel for this platform; the pure Python parser is equivalent but slower
    CParser = None

_TAG_HELP = "remove the tag, or quote the whole value if it begins with `!`, as an expression may"
_CORE = "tag:yaml.org,2002:"
_INTEGER = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]")
_CONSTANTS: dict[str, Any] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


MAX_COUNTED = 20_000
"""Characters of a string whose characters are located one by one."""


class YamlNode:
    """A value with its position. ``value`` is a scalar, a ``dict[str, YamlNode]`` or a ``list[YamlNode]``.

    ``key_positions`` holds the positions of a mapping's keys. ``style`` is that of a scalar: its quote, ``|`` or ``>``
    for a block, empty for plain text. ``is_folded``: YAML joins the lines of the text. ``lines`` are those of the file.
    """

    __slots__ = ("column", "is_folded", "key_positions", "line", "lines", "style", "value")

    def __init__(
        self,
        value: Any,
        line: int,
        column: int,
        *,
        style: str = "",
        is_folded: bool = False,
        lines: Sequence[str] = (),
    ) -> None:
        self.value: Any = value
        self.line = line
        self.column = column
        self.style = style
        self.is_folded = is_folded
        self.lines = lines
        self.key_positions: dict[str, Position] = {}

    def rename(self, key: str, meant: str) -> None:
        """Give a key of a mapping the name that was meant, at its position."""
        self.value = {meant if name == key else name: value for name, value in self.value.items()}
        self.key_positions = {**self.key_positions, meant: self.key_positions[key]}

    def position_at(self, offset: int) -> Position:
        """The position of a character of a string; for other values that of the node.

        YAML only changes white space and escapes, so the characters between them are counted, unless the string is so
        long that this could take the time of a whole file.
        """
        if not isinstance(self.value, str):
            return Position(self.line, self.column)
        is_block = self.style in ("|", ">")
        if len(self.value) > MAX_COUNTED:
            joined = is_block or self.is_folded
            return Position(self.line, self.column + (0 if joined else offset + len(self.style)))
        count = len("".join(self.value[:offset].split()))
        row, column = (self.line, 0) if is_block else (self.line - 1, self.column - 1 + len(self.style))
        while row < len(self.lines):
            for index, width in _visible_characters(self.lines[row], column, self.style):
                if count == 0:
                    return Position(row + 1, index + 1)
                count -= width > 0
            row, column = row + 1, 0
        return Position(self.line, self.column)

    def key_position(self, name: str) -> Position:
        """The position of a key; that of the mapping if the key was merged in."""
        return self.key_positions.get(name) or Position(self.line, self.column)

    @property
    def has_expression(self) -> bool:
        """True for a string whose value is unknown before the run."""
        return isinstance(self.value, str) and "${{" in self.value

    def to_json(self) -> Any:
        """The value as plain JSON data."""
        value = self.value
        if isinstance(value, dict):
            return {key: node.to_json() for key, node in value.items()}
        if isinstance(value, list):
            return [node.to_json() for node in value]
        return value


_ESCAPE = re.compile(r"\\\\(?:x(?P<x>..)|u(?P<u>....)|U(?P<U>........)|.|\Z)")
_ESCAPED_SPACES = frozenset("\\" + letter for letter in "tnvfreN_LP 	")


def _visible_characters(line: str, column: int, style: str) -> Iterator[tuple[int, int]]:
    """The column of each character of a scalar that is not white space, with the columns that it takes."""
    while column < len(line):
        width = 1
        visible = not line[column].isspace()
        if style == "'" and line.startswith("''", column):
            width = 2
        elif style == '"' and (escape := _ESCAPE.match(line, column)) is not None:
            text = escape.group()
            width = len(text)
            code = escape["x"] or escape["u"] or escape["U"]
            visible = not chr(int(code, 16)).isspace() if code else len(text) > 1 and text not in _ESCAPED_SPACES
        if visible:
            yield column, width
        column += width


def children_of(node: YamlNode | None) -> dict[str, YamlNode]:
    """The values of a mapping by key; empty for any other node, and for None."""
    return node.value if node is not None and isinstance(node.value, dict) else {}


class _InvalidYaml(Exception):
    def __init__(self, code: str, position: Position, message: str, help: str | None = None) -> None:
        self.code, self.position, self.message, self.help = code, position, message, help


def load_yaml(text: str, report: Report) -> YamlNode | None:
    """The root node of the single document in ``text``; None after reporting a mistake."""
    if len(text) > MAX_DEFINITION_CHARACTERS:
        report.add("SAGA100", Position(1, 1), f"the file has more than {MAX_DEFINITION_CHARACTERS:,} characters")
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        line = text.count("\n", 0, error.start) + 1
        report.add("SAGA100", Position(line, 1), "the text has half a surrogate pair, which is not a character")
        return None
    lines = re.split(r"\r\n|\r|\n", text)
    try:
        try:
            return _Composer(_events(text, fast=True), lines, report).compose()
        except YAMLError:
            return _Composer(_events(text, fast=False), lines, report).compose()
    except _InvalidYaml as wrong:
        report.add(wrong.code, wrong.position, wrong.message, wrong.help)
    except YAMLError as error:
        report_yaml_error(error, text, lines, report)
    return None


def _events(text: str, *, fast: bool) -> Iterator[Any]:
    if fast and CParser is not None:
        parser = CParser(text)
        while parser.check_event():
            yield parser.get_event()
        return
    from ruamel.yaml import YAML

    yield from YAML(typ="safe", pure=True).parse(text)


class _Composer:
    def __init__(self, events: Iterator[Any], lines: Sequence[str], report: Report) -> None:
        self._events = events
        self._lines = lines
        self._report = report
        self._anchors: dict[str, YamlNode] = {}
        self._sizes: dict[int, int] = {}
        self._open_anchors: set[str] = set()

    def compose(self) -> YamlNode:
        root: YamlNode | None = None
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise _InvalidYaml(
                        "SAGA100",
                        _position(event),
                        "the file contains more than one document",
                        "write one saga per file",
                    )
                root, _ = self._node(next(self._events), 0)
        if root is None:
            raise _InvalidYaml("SAGA100", Position(1, 1), "the file is empty", "begin with `saga: <name>`")
        return root

    def _node(self, event: Any, depth: int) -> tuple[YamlNode, int]:
        """A node, and the number of nodes it stands for after its aliases are expanded."""
        position = _position(event)
        if depth > MAX_JSON_DEPTH:
            raise _InvalidYaml("SAGA100", position, f"values are nested deeper than {MAX_JSON_DEPTH} levels")
        if isinstance(event, AliasEvent):
            name = str(event.anchor)
            if name in self._open_anchors:
                raise _InvalidYaml("SAGA100", position, f"the anchor `{name}` contains itself")
            if name not in self._anchors:
                raise _InvalidYaml(
                    "SAGA100", position, f"the anchor `{name}` is not defined above; define it with &{name} first"
                )
            node = self._anchors[name]
            return node, self._sizes[id(node)]
        anchor = str(event.anchor) if event.anchor else None
        if anchor:
            self._open_anchors.add(anchor)
        if isinstance(event, ScalarEvent):
            node, size = _compose_scalar(event, position, self._lines), 1
        elif isinstance(event, MappingStartEvent):
            node, size = self._mapping(position, depth)
        elif isinstance(event, SequenceStartEvent):
            node, size = self._sequence(position, depth)
        else:
            raise _InvalidYaml("SAGA100", position, "the YAML ends too early")
        if size > MAX_DEFINITION_NODES:
            raise _InvalidYaml("SAGA100", position, f"the file expands to more than {MAX_DEFINITION_NODES} values")
        if anchor:
            self._open_anchors.discard(anchor)
            self._anchors[anchor] = node
            self._sizes[id(node)] = size
        return node, size

    def _sequence(self, position: Position, depth: int) -> tuple[YamlNode, int]:
        items: list[YamlNode] = []
        total = 1
        for event in self._events:
            if isinstance(event, SequenceEndEvent):
                break
            item, size = self._node(event, depth + 1)
            items.append(item)
            total += size
        return YamlNode(items, position.line, position.column), total

    def _mapping(self, position: Position, depth: int) -> tuple[YamlNode, int]:
        values: dict[str, YamlNode] = {}
        node = YamlNode(values, position.line, position.column)
        merges: list[YamlNode] = []
        total = 1
        for event in self._events:
            if isinstance(event, MappingEndEvent):
                break
            mark = _position(event)
            if not isinstance(event, ScalarEvent):
                line = self._lines[mark.line - 1] if mark.line <= len(self._lines) else ""
                help = 'write an expression as "${{ … }}", in quotes' if "{{" in line else None
                raise _InvalidYaml("SAGA100", mark, "a key must be a plain string", help)
            key = _whole_characters(event.value, mark)
            value, size = self._node(next(self._events), depth + 1)
            total += size
            if key == "<<" and not event.style:
                merges.append(value)
            elif key in values:
                first = node.key_positions[key].line
                self._report.add("SAGA102", mark, f"the key `{key}` is already used in line {first}")
            else:
                if "${{" in key and "}}" not in key:
                    raise _InvalidYaml("SAGA101", mark, "this expression must be quoted")
                values[key] = value
                node.key_positions[key] = mark
        for merge in merges:
            _merge(node, merge)
        return node, total


def _merge(node: YamlNode, merge: YamlNode) -> None:
    """Merge keys into ``node``: its own keys win, and of several merged mappings the first wins."""
    sources = merge.value if isinstance(merge.value, list) else [merge]
    for source in sources:
        if not isinstance(source.value, dict):
            raise _InvalidYaml(
                "SAGA100", Position(merge.line, merge.column), "`<<` merges a mapping or a list of mappings"
            )
        for key, value in source.value.items():
            if key not in node.value:
                node.value[key] = value
                node.key_positions[key] = source.key_positions[key]


def _whole_characters(text: str, position: Position) -> str:
    """The text with the character that two escapes such as `\\ud83d\\ude00` stand for, as in JSON.

    Raises _InvalidYaml for half of such a pair.
    """
    try:
        return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _InvalidYaml(
            "SAGA100", position, "the text has half a surrogate pair, which is not a character"
        ) from None


def _compose_scalar(event: Any, position: Position, lines: Sequence[str]) -> YamlNode:
    text, style, tag = _whole_characters(event.value, position), event.style, event.tag
    tag = str(tag) if tag else None
    plain = not style
    is_folded = style == ">" or (style != "|" and event.end_mark.line > event.start_mark.line)
    node = YamlNode(text, position.line, position.column, style=style or "", is_folded=is_folded, lines=lines)
    if tag and tag != "!" and not (tag.startswith(_CORE) or tag.startswith("!!")):
        raise _InvalidYaml("SAGA100", position, f"the tag `{tag}` has no meaning here", _TAG_HELP)
    kind = tag.removeprefix(_CORE).removeprefix("!!") if tag else None
    if kind in ("str", "!") or (kind is None and not plain):
        return node
    if kind is None and "${{" in text:
        if text.replace("$${{", "").count("${{") > text.count("}}"):
            raise _InvalidYaml("SAGA101", position, "this expression must be quoted")
        return node
    node.value = _core_value(text, position, kind)
    return node


def _core_value(text: str, position: Position, kind: str | None) -> Any:
    """The value of a plain scalar in the core schema of YAML 1.2, in which `yes`, `on` and dates are strings."""
    if text in _CONSTANTS:
        value: Any = _CONSTANTS[text]
    elif _INTEGER.match(text):
        is_decimal = text[:2] not in ("0o", "0x")
        digits, most = text.lstrip("+-"), MAX_INTEGER_DIGITS if is_decimal else MAX_PREFIXED_DIGITS
        if len(digits) > most:
            raise _InvalidYaml("SAGA100", position, f"a number of more than {most:,} digits is refused")
        value = int(text, 10 if is_decimal else 0)
    elif _FLOAT.match(text):
        try:
            value = exact_number(text)
        except ValueError as error:
            raise _InvalidYaml("SAGA100", position, str(error), "quote it if it is text") from None
    elif text.lower() in (".nan", ".inf", "-.inf", "+.inf"):
        raise _InvalidYaml("SAGA100", position, f"{text} is not a JSON number", "quote it if it is text")
    else:
        value = text
    if _LEADING_ZERO.match(text) and not isinstance(value, str):
        raise _InvalidYaml(
            "SAGA100",
            position,
            f"{shorten(text, 40)} begins with a zero, which a number cannot",
            "quote it if it is text, such as a code; write a number without the zero",
        )
    expected = {"int": int, "float": (int, Decimal), "bool": bool, "null": type(None)}
    if kind is not None and (kind not in expected or not isinstance(value, expected[kind])):
        raise _InvalidYaml("SAGA100", position, f"the tag `!!{kind}` does not fit here", "remove the tag")
    return Decimal(value) if kind == "float" else value


def _position(event: Any) -> Position:
    mark = event.start_mark
    return Position(mark.line + 1, mark.column + 1)
