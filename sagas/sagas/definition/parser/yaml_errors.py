"""Explains text that is not YAML: the parser says which token it expected, authors need to know what to write."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.reader import ReaderError

from sagas.definition.diagnostics import Position, Report

_QUOTE_IT = "quote the whole value"
_INDENT = (
    "give the fields of one mapping, and the `-` of one list, the same indentation, and write a blank after each `:`"
)
_EXPLAINED = (
    ("found character '(?P<char>.+)' that cannot start", "a value cannot begin with `{char}`", _QUOTE_IT),
    ("expected alphabetic or numeric", "a text cannot begin with `*` or `&`", _QUOTE_IT),
    ("expected a comment or a line break", "a text cannot begin with `>` or `|`", _QUOTE_IT),
    (
        "unknown escape character '(?P<char>.)'",
        "`\\{char}` is not an escape of a text in double quotes",
        "put the text in single quotes, or write each backslash twice",
    ),
    ("could not find expected ':'", "this line is not a field", f"write `name: value`; {_INDENT}"),
    (
        "expected <block end>, but found '<scalar>'",
        "text follows a closing quote",
        "write a quote inside quoted text twice, or put the text in the other kind of quotes",
    ),
    ("expected <block end>", "this line does not have the indentation of those above it", _INDENT),
    ("mapping values are not allowed", "this line continues the text of the line above", _INDENT),
    (
        "expected ',' or '(?P<char>.)'",
        "an entry is not followed by a comma or `{char}`",
        "close each bracket, put commas between entries, and quote values with `: `, `,`, a bracket or a brace in them",
    ),
)
"""The parser's sentence, what it means for the author, and what to write."""


def report_yaml_error(error: YAMLError, text: str, lines: Sequence[str], report: Report) -> None:
    """Report why the text cannot be read, and what to write instead."""
    if isinstance(error, ReaderError):
        _report_character(error, text, report)
        return
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        report.add("SAGA100", Position(1, 1), "the text is not YAML", "write `name: value` lines, as in `saga: shop`")
        return
    mark, opening = error.problem_mark, error.context_mark
    for index in [mark.line] + ([opening.line] if opening else []):
        column = unquoted_expression(_line(lines, index))
        if column is not None:
            report.add("SAGA101", Position(index + 1, column + 1), "this expression must be quoted")
            return
    problem = " ".join(str(error.problem or error.context or "unexpected text").split())
    if "end of stream" in problem and opening is not None:
        help = "close it, or write a quote that belongs to the text twice"
        report.add("SAGA100", Position(opening.line + 1, opening.column + 1), "this quote is not closed", help)
        return
    message, help = _explanation(problem, _line(lines, mark.line), mark.column)
    report.add("SAGA100", Position(mark.line + 1, mark.column + 1), message, help)


def _line(lines: Sequence[str], index: int) -> str:
    return lines[index] if index < len(lines) else ""


def _explanation(problem: str, line: str, column: int) -> tuple[str, str | None]:
    """The message and the help for a problem at this column of the line."""
    indentation = line[: len(line) - len(line.lstrip())]
    if indentation.strip(" "):
        what = "a TAB" if "\t" in indentation else "white space that is not a blank"
        return f"this line is indented with {what}", "indent with blanks; YAML takes nothing else"
    field = re.match(r"[\s-]*(?P<name>[\w.-]+): +(?P<value>.*\S)", line[: column + 1])
    if field is not None and "mapping values" in problem:
        name, value = field["name"], line[field.start("value") :].strip()
        written = f'{name}: "{value}"' if len(value) <= 80 and not re.search(r'["\\]', value) else "the whole value"
        return f"the value of `{name}` has a `: ` in it, which YAML takes for another field", f"quote it: {written}"
    for pattern, message, help in _EXPLAINED:
        if (match := re.search(pattern, problem)) is not None:
            return message.format(**match.groupdict()), help
    return f"the YAML cannot be read here ({problem})", None


def _report_character(error: ReaderError, text: str, report: Report) -> None:
    character = error.character if isinstance(error.character, str) else chr(error.character)
    before = text[: max(text.find(character), 0)]
    position = Position(before.count("\n") + 1, len(before) - before.rfind("\n"))
    help = "remove it, or write it as an escape in double quotes"
    report.add("SAGA100", position, f"the character U+{ord(character):04X} cannot stand in YAML", help)


def unquoted_expression(line: str) -> int | None:
    """The index of the first expression outside quotes; None if all expressions on the line are quoted."""
    quote, before = "", ""  # ``before``: the last character that is not a blank
    for index, char in enumerate(line):
        if quote:
            if char == quote:
                quote = ""
        elif char in "\"'" and before in ("", ":", "-", "[", "{", ","):
            quote = char
        elif line.startswith("${{", index):
            return index
        if not char.isspace():
            before = char
    return None
