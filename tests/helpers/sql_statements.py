"""Random statements of each dialect, with what their databases must find in them.

Everything is known by construction: a statement is put together from parts of which each is either text or a
placeholder. Texts contain what only looks like a placeholder, a comment, a quote or an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from random import Random

Part = str | tuple[str]
"""Text, or the name of a placeholder."""

_NAMES = ("a", "b", "sku", "day_2", "Ünal")
_DECOYS = (
    ":a",
    ":sku",
    "?",
    "$1",
    "%s",
    "%(a)s",
    "%",
    "--",
    "/*",
    "*/",
    ";",
    "$$",
    "#",
    "::",
    "@x",
    "[",
    "]",
    "é",
    " ",
)
_QUOTES = {"postgresql": "'\"", "mysql": "'\"`", "sqlite": "'\"`"}


@dataclass(frozen=True)
class Sample:
    """One statement as its parts."""

    parts: tuple[Part, ...]

    @property
    def source(self) -> str:
        """The text as an author writes it."""
        return "".join(part if isinstance(part, str) else f":{part[0]}" for part in self.parts)

    @property
    def names(self) -> list[str]:
        """The distinct placeholders in order."""
        return list(dict.fromkeys(part[0] for part in self.parts if not isinstance(part, str)))

    @property
    def occurrences(self) -> int:
        return sum(not isinstance(part, str) for part in self.parts)

    def rendered(self, style: str) -> str:
        """The text with placeholders of a driver, built without reading the text; ``each``: a number for each."""
        names, numbers = self.names, count(1)
        written = {
            "qmark": lambda name: "?",
            "each": lambda name: f"${next(numbers)}",
            "numeric_dollar": lambda name: f"${names.index(name) + 1}",
        }[style]
        return "".join(part if isinstance(part, str) else written(part[0]) for part in self.parts)


def statement(random: Random, dialect: str, *, parameters: bool = True) -> Sample:
    """A SELECT that the database can prepare; ``parameters``: it may have some."""
    parts: list[Part] = ["select"]
    for at in range(random.randint(1, 5)):
        parts += ["," if at else "", _gap(random, dialect), *_value(random, dialect, parameters=parameters)]
        parts += [
            _gap(random, dialect),
            "as",
            _gap(random, dialect),
            f"c{at}" if random.random() < 0.5 else _name(random, dialect, at),
        ]
        if random.random() < 0.5:
            parts.append(_gap(random, dialect))
    return Sample(tuple(parts))


def hidden_condition(random: Random, dialect: str) -> tuple[str, bool]:
    """A SELECT of no row by its last line, and whether a comment hides that line.

    The comment ends with a line break of each kind, of which MySQL and SQLite do not take all for its end.
    """
    end = random.choice(("\n", "\r\n", "\r", "\r \t", "\f", "\v"))
    is_end = "\n" in end or ("\r" in end and dialect == "postgresql")
    # A line feed elsewhere: the statement is not a single line that YAML has folded.
    return f"select 1 from\n(select 1 as a) as t -- {_decoys(random)}{end}where a = 2", not is_end


def script(random: Random, dialect: str) -> tuple[str, int]:
    """Statements without placeholders in one text, and their number."""
    texts = [statement(random, dialect, parameters=False).source for _ in range(random.randint(1, 3))]
    # MySQL counts a comment behind the last semicolon as an empty statement.
    end = random.choice(("", ";", " ; ", "; " if dialect == "mysql" else f";{_gap(random, dialect)}"))
    return ";".join(texts) + end, len(texts)


def _value(random: Random, dialect: str, *, parameters: bool) -> list[Part]:
    own = {"postgresql": _postgresql, "mysql": _mysql, "sqlite": _sqlite}[dialect]
    if parameters and random.random() < 0.5:
        name = (random.choice(_NAMES),)
        return random.choice(
            (
                [name],
                ["(", name, ")"],
                ["coalesce(", name, ",", _gap(random, dialect), name, ")"],
                ["cast(", name, " as char(5))"],
                *own(random, name),
            )
        )
    return random.choice((["1"], ["1.5"], ["7 % 4"], [_string(random, "'")], ["-1"], *own(random, None)))


def _postgresql(random: Random, name: tuple[str] | None) -> list[list[Part]]:
    tag = random.choice(("$$", "$t$", "$Tag_1$"))
    inside = _decoys(random, tag) + random.choice((":a", "'", "$x"))
    if name is not None:
        return [
            [name, "::text"],
            [name, "::", "varchar(3)"],
            ["(array[1,2,3])[", name, "::int", ":", "2]"],
            ["(array[1,2,3])[", name, "::int : ", name, "::int]"],
            ["'{}'::jsonb ? ", name, "::text"],
            ["'{}'::jsonb ?| array[", name, "]::text[]"],
            ["'x' || ", name],
            [_escaped(random), _gap(random, "postgresql"), "||", name],
        ]
    return [
        [tag, inside, tag],
        [_escaped(random)],
        [f"U&'{_decoys(random, chr(92)).replace(chr(39), '')}'"],
        ["(array[1,2,3])[1:2]"],
        ["(select (array[1,2,3])[low:high] from (select 1 as low, 2 as high) as bounds)"],
        ["'1'::int"],
        ["'{\"a:b\": 1}'::jsonb ->> 'a:b'"],
        ["'{}'::jsonb ? 'a'"],
        ["n'n:no'", "||", "e'x'"],
        ["x'1F'"],
        ["E'a\\\\'\n'b\\':a'"],
    ]


def _mysql(random: Random, name: tuple[str] | None) -> list[list[Part]]:
    if name is not None:
        return [
            ["@v:=", name],
            ["5--", name],
            ["concat(", _backslashed(random, "'"), ",", name, ")"],
            ["@v:=", "@w:=", name],
        ]
    return [
        [_backslashed(random, "'")],
        [_backslashed(random, '"')],
        [_string(random, '"')],
        ["5--1"],
        ["@v"],
        ["@v:='x'"],
        ["json_value('{\"a:b\": 2}', '$.a:b')"],
        ["x'1F'"],
    ]


def _sqlite(random: Random, name: tuple[str] | None) -> list[list[Part]]:
    if name is not None:
        return [["'x'||", name], ["1+", name], [name, "->>'$.a'"]]
    return [["x'61'"], ["'back\\'"], ["1e3"], ["'{}' ->> '$.a:b'"]]


def _decoys(random: Random, without: str = "") -> str:
    return "".join(decoy for decoy in random.choices(_DECOYS, k=random.randint(0, 4)) if not set(without) & set(decoy))


def _string(random: Random, quote: str) -> str:
    return quote + random.choice(("", quote * 2)).join((_decoys(random), _decoys(random))) + quote


def _backslashed(random: Random, quote: str) -> str:
    return quote + random.choice(("\\" + quote, "\\\\", "\\n")).join((_decoys(random), _decoys(random))) + quote


def _escaped(random: Random) -> str:
    return random.choice("eE") + _backslashed(random, "'")


def _name(random: Random, dialect: str, at: int) -> str:
    quote = random.choice({"postgresql": '"', "mysql": "`", "sqlite": '"`['}[dialect])
    text = _decoys(random, "[]" if quote == "[" else "").strip() + f"c{at}"
    return f"[{text}]" if quote == "[" else f"{quote}{text}{random.choice(('', quote * 2))}{quote}"


def _gap(random: Random, dialect: str) -> str:
    text = _decoys(random, "*/").replace("\n", "")
    gaps = [" ", "\n", " \t\n", f" /*{text}*/ ", f" -- {text}'\n", "/* ' */ ", "--\n", "\r", f" -- {text}\r\n"]
    if dialect == "postgresql":
        gaps += [f" /* {text} /* :a */ ' */ ", "/*/**/*/ ", f" --{text}\n", f" --{text}'\r"]
    if dialect == "mysql":
        gaps += [f' #{text}"\n', " # it's :a\n"]
    if dialect == "sqlite":
        gaps += [f" --{text}'\n"]
    return random.choice(gaps)
