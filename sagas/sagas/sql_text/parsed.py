"""One statement of an author: its named parameters, and its text in the style of a driver."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sagas.errors import did_you_mean
from sagas.sql_text.dialects import NAMES
from sagas.sql_text.tokens import (
    ENDS_COMMENTS_AT_LINE_FEEDS,
    INSIGNIFICANT,
    RefusedStatement,
    SqlToken,
    UnreadableSql,
    shown,
    split_tokens,
)


class ParametersDiffer(RefusedStatement):
    """The placeholders of a statement and the parameters given for it are not the same.

    ``unused``: the parameter ``name`` is given without a placeholder; else its placeholder has no parameter.
    """

    def __init__(self, message: str, name: str, *, unused: bool, help: str, offset: int) -> None:
        super().__init__(message, help=help, offset=offset)
        self.name = name
        self.unused = unused


class SwallowedText(UnreadableSql):
    """A line comment takes the rest of a statement with it, because its lines were joined."""


class SeveralStatements(RefusedStatement):
    """A text has several statements; ``help``: what its place takes instead."""

    def __init__(
        self, offset: int, help: str = "write a list of statements under `run`, or call step.sql for each"
    ) -> None:
        super().__init__("several statements in one string are refused", help=help, offset=offset)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A statement in the style of a driver. ``names`` are the parameters in the order of their placeholders.

    ``origins`` are pairs of an offset in ``text`` and the offset in the author's text that it comes from, ascending.
    """

    text: str
    names: tuple[str, ...]
    origins: tuple[tuple[int, int], ...]

    def values(self, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values for positional placeholders."""
        return tuple(parameters[name] for name in self.names)

    def origin_of(self, offset: int) -> int:
        """The offset in the author's text of a character of ``text``."""
        start, origin = 0, 0
        for rendered, written in self.origins:
            if rendered > offset:
                break
            start, origin = rendered, written
        return origin + offset - start


@dataclass(frozen=True, eq=False)
class ParsedSql:
    """One statement as its database reads it, up to its semicolon. ``tokens`` are all of ``source``."""

    source: str
    dialect: str
    tokens: tuple[SqlToken, ...]
    parameters: tuple[str, ...]

    def text_of(self, token: SqlToken) -> str:
        return self.source[token.start : token.end]

    def significant(self) -> Iterator[SqlToken]:
        """The tokens that are neither white space nor comments, up to the semicolon."""
        for token in self.tokens:
            if token.kind == "end":
                return
            if token.kind not in INSIGNIFICANT:
                yield token

    @property
    def keywords(self) -> list[str]:
        """The unquoted words outside parentheses, in upper case."""
        depth, words = 0, []
        for token in self.significant():
            if token.kind in ("open", "close") and self.source[token.start] in "()":
                depth += 1 if token.kind == "open" else -1
            elif token.kind == "word" and depth == 0:
                words.append(self.text_of(token).upper())
        return words

    def offset_of(self, parameter: str) -> int:
        """The offset of the first placeholder of a parameter."""
        return next(
            token.start
            for token in self.tokens
            if token.kind == "parameter" and self.source[token.start + 1 : token.end] == parameter
        )

    def render(self, style: str) -> Rendered:
        """The statement in a parameter style of PEP 249, or ``numeric_dollar`` (``$1``, a number for each name).

        A driver with ``format`` and ``pyformat`` takes a percent sign for a placeholder, so it is doubled.
        """
        return _render(self, style)

    def pieces(self) -> list[str]:
        """Alternately SQL and the name of a parameter."""
        pieces, plain = [], ""
        for token in self._kept():
            text = self.text_of(token)
            if token.kind == "parameter":
                pieces += [plain, text[1:]]
                plain = ""
            else:
                plain += text
        return [*pieces, plain]

    def _kept(self) -> Iterable[SqlToken]:
        """All tokens before the semicolon, with the comments that are among them."""
        for token in self.tokens:
            if token.kind == "end":
                return
            yield token

    def check_parameters(self, given: Collection[str]) -> None:
        """Compare placeholders and parameters both ways. Raises :class:`ParametersDiffer`."""
        if len(given) != len(self.parameters) or any(name not in given for name in self.parameters):
            raise self.differences(given)[0]

    def differences(self, given: Collection[str]) -> list[ParametersDiffer]:
        """Each parameter without a placeholder, and each placeholder without a parameter."""
        names = tuple(str(name) for name in given)
        missing = [name for name in self.parameters if name not in names]
        unused = [name for name in names if name not in self.parameters]
        return [
            *(self._missing(name, unused) for name in missing),
            *(self._unused(name) for name in unused),
        ]

    def _missing(self, name: str, unused: Sequence[str]) -> ParametersDiffer:
        message = f"the statement has the placeholder `:{name}`, and no parameter of this name is given"
        help = f"add `{name}` to the parameters{did_you_mean(name, tuple(unused))}"
        return ParametersDiffer(message, name, unused=False, help=help, offset=self.offset_of(name))

    def _unused(self, name: str) -> ParametersDiffer:
        message = f"the parameter `{name}` is given, and the statement has no placeholder `:{name}`"
        help, offset = f"write `:{name}` where its value belongs, or remove the parameter", 0
        for token in self.tokens:
            start = f"{self.text_of(token)} ".find(f":{name}")
            if token.kind in ("line_comment", "comment", "string", "name") and start >= 0:
                offset = token.start + start
                where = {"string": "a string", "name": "a quoted name"}.get(token.kind, "a comment")
                help = f"there, `:{name}` is a part of {where}: `{shown(self.text_of(token))}`"
                break
            if token.kind == "operator" and self.source.startswith(f":{name}", token.start):
                offset = token.start
                help = (
                    f"directly after a value the colon is {NAMES[self.dialect]}'s own: write a space before `:{name}`"
                )
                break
        return ParametersDiffer(message, name, unused=True, help=help, offset=offset)


def shared_differences(
    statements: Sequence[ParsedSql], given: Collection[str], *, all_used: bool = True
) -> list[tuple[int, ParametersDiffer]]:
    """Compare the parameters that several statements share with the placeholders of all of them.

    Returns each difference with the index of its statement. ``all_used``: an unused parameter is a difference.
    """
    names = {name for statement in statements for name in statement.parameters}
    result = [
        (index, differs)
        for index, statement in enumerate(statements)
        for differs in statement.differences({*given} | (names - {*statement.parameters}))
        if not differs.unused
    ]
    if all_used and statements:
        unused = [str(name) for name in given if name not in names]
        result += [(0, differs) for differs in statements[0].differences([*statements[0].parameters, *unused])]
    return result


_END_OF_COMMENT = "end the comment with a line break, or write it as /* … */"


@lru_cache(maxsize=4096)
def parse_sql(text: str, dialect: str) -> ParsedSql:
    """The single statement in ``text``.

    Raises :class:`RefusedStatement` if it is empty, several, has placeholders other than ``:name``, or cannot be read.
    """
    tokens = split_tokens(text, dialect)
    _refuse_swallowed_text(text, dialect, tokens)
    _refuse_several(tokens)
    parameters: dict[str, None] = {}
    for index, token in enumerate(tokens):
        if token.kind == "parameter":
            parameters[text[token.start + 1 : token.end]] = None
        elif token.kind == "placeholder":
            own = text[token.start : token.end]
            raise UnreadableSql(
                f"`{own}` is a placeholder of {NAMES[dialect]} for which no value can be given",
                help="write a named parameter, `:name`",
                offset=token.start,
            )
        elif token.kind == "executable":
            raise UnreadableSql(
                "an executable comment (/*! … */) is refused: whether it is run depends on the server",
                help="write its text without the comment",
                offset=token.start,
            )
        elif token.kind == "cast" and dialect in ("mysql", "mariadb", "sqlite"):
            following = re.match(r"\s*([\w.]+(?:\([\d, ]*\))?)", text[token.end :])
            raise UnreadableSql(
                f"{NAMES[dialect]} has no casts with `::`",
                help=f"write cast(… as {shown(following[1], 20) if following else 'type'})",
                offset=tokens[index].start,
            )
    return ParsedSql(text, dialect, tokens, tuple(parameters))


_READS_AS_SQL = re.compile(
    r"\bwhere\b|\breturning\b|\b(order|group)\s+by\b|\blimit\s+\d|\bunion\b.*\bselect\b|\bvalues\s*\("
    r"|\b(and|or|on|set|having)\b.*[=<>]|\b(and|or)\b.*\b(null|in\s*\(|like|between|exists)"
    r"|\b(and|or)\s*\(|\b(and|or)\s+(not\s+)?[\w.]+\s*\Z|(?<!:):[a-z_]\w*",
    re.IGNORECASE,
)
"""Words that a comment at the end of a statement without line breaks may not contain: it may have swallowed a line."""


def _refuse_swallowed_text(text: str, dialect: str, tokens: Sequence[SqlToken]) -> None:
    """A line comment that goes on where its author sees its end.

    A statement may be without line breaks, or have a carriage return, which shows as one and does not end a comment of
    MySQL, MariaDB and SQLite. Where the text stands in YAML, :func:`refuse_comment` is called for each comment that
    goes over several lines.
    """
    only_line_feeds = dialect in ENDS_COMMENTS_AT_LINE_FEEDS
    for token in tokens:
        if token.kind != "line_comment":
            continue
        comment = text[token.start : token.end]
        if only_line_feeds and comment.rstrip().partition("\r")[2]:
            raise SwallowedText(
                f"the comment `{shown(comment)}` goes on after its carriage return, because {NAMES[dialect]} ends a "
                "comment only at a line feed",
                help="end the comment with a line feed, or write it as /* … */",
                offset=token.start,
            )
        has_lines = "\n" in text or ("\r" in text and not only_line_feeds)
        if token is tokens[-1] and not has_lines and _READS_AS_SQL.search(comment):
            refuse_comment(text, token)


def refuse_comment(text: str, comment: SqlToken, help: str = _END_OF_COMMENT) -> None:
    """Raise :class:`SwallowedText` if the comment contains text."""
    if text[comment.start : comment.end].lstrip("#-").strip():
        raise SwallowedText(
            f"the comment `{shown(text[comment.start : comment.end])}` takes the rest of the statement with it",
            help=help,
            offset=comment.start,
        )


def _refuse_several(tokens: Sequence[SqlToken]) -> None:
    begun = ended = False
    for token in tokens:
        if token.kind in INSIGNIFICANT:
            continue
        if token.kind == "end":
            ended = begun
        elif ended:
            raise SeveralStatements(token.start)
        else:
            begun = True
    if not begun:
        raise RefusedStatement("an empty statement: write one SQL statement")


_STYLES: dict[str, Callable[[str, int], str]] = {
    "qmark": lambda name, number: "?",
    "format": lambda name, number: "%s",
    "pyformat": lambda name, number: f"%({name})s",
    "named": lambda name, number: f":{name}",
    "numeric_dollar": lambda name, number: f"${number}",
}


@lru_cache(maxsize=4096)
def _render(parsed: ParsedSql, style: str) -> Rendered:
    written, doubled = _STYLES[style], style in ("format", "pyformat")
    parts: list[str] = []
    names: list[str] = []
    origins: list[tuple[int, int]] = []
    length = 0
    for token in parsed._kept():
        part = parsed.text_of(token)
        if token.kind == "parameter":
            name = part[1:]
            part = written(name, parsed.parameters.index(name) + 1)
            names.append(name)
        elif doubled:
            part = part.replace("%", "%%")
        origins.append((length, token.start))
        parts.append(part)
        length += len(part)
    return Rendered("".join(parts).rstrip(), tuple(names), tuple(origins))
