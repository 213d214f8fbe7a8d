"""Operators, words and functions of Python, JavaScript, SQL and Jinja, with the CEL that says the same.

The lexer, the parser and the checks of names and calls look up here what to propose.
"""

from __future__ import annotations

import re

OPERATORS = {
    "===": "write ==",
    "!==": "write !=",
    "<>": "write !=",
    "=>": "write list.map(x, …) or list.filter(x, …)",
    "->": "write a.b",
    "::": "write a.b",
    "**": "write x * x",
    "??": "write default(x, y)",
    "++": "write x + 1",
    "+=": "write x + y; an expression changes nothing",
    "-=": "write x - y; an expression changes nothing",
    ":=": "write the value itself; an expression changes nothing",
    "=": "write == to compare",
    "&": "write &&",
    "|": "write ||, or f(x) for a filter",
    "~": "write a + b",
    "`": "write a['field']",
    "$": "write the name alone, as in input.x",
    "@": "write the name alone, as in input.x",
    "#": "write // for a comment",
    ";": "write one expression",
    **dict.fromkeys("“”„«»‘’", "write ' or \" around text"),
}
_OPERATOR = re.compile("|".join(re.escape(text) for text in sorted(OPERATORS, key=len, reverse=True)))

_LIST_METHODS = "write list.map(x, …), list.filter(x, …), list.exists(x, …) or list.all(x, …)"
_CONDITION = "write condition ? a : b"
_WORDS = {
    "and": "write &&",
    "or": "write ||",
    "not": "write !x, or !(x in list)",
    "is": "write ==, as in x == null, or !=",
    "isnot": "write !=",
    "if": _CONDITION,
    "then": _CONDITION,
    "else": _CONDITION,
    "elif": _CONDITION,
    "case": _CONDITION,
    "when": _CONDITION,
    "for": _LIST_METHODS,
    "lambda": _LIST_METHODS,
    "function": _LIST_METHODS,
    "like": "write x.contains('…'), x.startsWith('…') or x.matches('…')",
    "between": "write a <= x && x <= b",
    "mod": "write %",
    "div": "write /",
    "eq": "write ==",
    "ne": "write !=",
    "lt": "write <",
    "gt": "write >",
    "typeof": "declare the type under `input`",
    "instanceof": "declare the type under `input`",
    "new": "write the value itself",
    "await": "write the value itself",
    "return": "write the value itself",
    "let": "write the value itself",
    "var": "write the value itself",
    "const": "write the value itself",
}

_NULL = "write null"
NAMES = {
    "true": "write true",
    "false": "write false",
    **dict.fromkeys(("null", "none", "nil", "undefined"), _NULL),
    **dict.fromkeys(("inputs", "args", "params", "payload", "ctx", "context", "self", "this"), "write input.x"),
    **dict.fromkeys(("outputs", "results", "needs", "tasks", "jobs"), "write steps.<id>.result"),
    **dict.fromkeys(("workflow", "run", "execution"), "write saga.id or saga.name"),
    **dict.fromkeys(
        ("env", "environ", "os", "config", "settings", "variables"),
        "write vars.x, and give x a value under [vars] in saga.toml",
    ),
    **dict.fromkeys(
        ("secret", "secrets"), "name a connection: its secrets are read on the worker and are in no expression"
    ),
}
"""Names that no scope has, in lower case."""

_SIZE = "write size(x)"
_NUMBER = "write decimal(x) for an exact number"
FUNCTIONS = {
    **dict.fromkeys(("len", "length", "count", "cardinality"), _SIZE),
    **dict.fromkeys(("str", "tostring", "repr", "to_string", "text"), "write string(x)"),
    **dict.fromkeys(("float", "number", "parsefloat", "numeric", "tonumber"), _NUMBER),
    **dict.fromkeys(("integer", "parseint", "toint", "to_int"), "write int(x)"),
    **dict.fromkeys(("boolean", "tobool"), "write bool(x)"),
    **dict.fromkeys(("any", "some"), "write list.exists(x, …)"),
    **dict.fromkeys(("every",), "write list.all(x, …)"),
    **dict.fromkeys(("range", "enumerate", "zip", "reduce", "foreach"), _LIST_METHODS),
    **dict.fromkeys(("list", "array", "tuple", "set"), "write [a, b]"),
    **dict.fromkeys(("dict", "object", "map"), "write {'key': value}"),
    **dict.fromkeys(("coalesce", "ifnull", "nvl", "get"), "write default(x, y)"),
    **dict.fromkeys(("iif", "ternary", "cond", "case"), _CONDITION),
    **dict.fromkeys(("concat", "format", "sprintf"), "write 'text' + string(x), or text around ${{ … }}"),
    **dict.fromkeys(("includes", "indexof", "find", "contain"), "write x.contains('…'), or x in list"),
    **dict.fromkeys(("touppercase", "upcase", "ucase"), "write upper(x)"),
    **dict.fromkeys(("tolowercase", "downcase", "lcase"), "write lower(x)"),
    **dict.fromkeys(("abs",), "write x < 0 ? -x : x"),
    **dict.fromkeys(("floor", "ceil", "trunc"), "write round(x), or int(x), which cuts the fraction off"),
    **dict.fromkeys(("avg", "mean", "average"), "write sum(list) / size(list)"),
    **dict.fromkeys(("sorted",), "write sort(list)"),
    **dict.fromkeys(("test", "match", "regex", "search"), "write x.matches('…')"),
    **dict.fromkeys(("isinstance", "typeof", "type"), "declare the type under `input`"),
    **dict.fromkeys(("uint",), "write int(x)"),
    **dict.fromkeys(("bytes",), "pass text; there are no bytes"),
    **dict.fromkeys(("dyn",), "write x alone; nothing is typed before it is evaluated"),
    **dict.fromkeys(
        ("now", "today", "current_timestamp", "getdate", "utcnow"),
        "write saga.started_at, because an expression has the same value on replay",
    ),
    **dict.fromkeys(
        ("random", "rand", "uuid4", "uuid7"),
        "write uuid(step.key), because an expression has the same value on replay",
    ),
    **dict.fromkeys(("env", "getenv", "secret"), "write vars.x, and give x a value under [vars] in saga.toml"),
    **dict.fromkeys(("print", "log", "debug"), "leave it out; an expression only computes a value"),
    **dict.fromkeys(
        ("replace", "substring", "substr", "slice", "strip", "trim", "reverse", "push", "append"),
        "compute it in an action of your own",
    ),
}
"""Functions that CEL or this language does not have, in lower case."""

INTEGER_DIVISION = re.compile(
    r"//[ \t]*(?:[0-9][0-9.]*|[A-Za-z_]\w*(?:\.\w+)+|\([^)\n]*\))[ \t]*(?:$|[-+*/%)<>=!&|?:,\]}\n])"
)
"""``//`` before an operand, which divides in Python and would make a comment of the divisor here."""

FIELDS = dict.fromkeys(("length", "size", "count", "len"), "size({})")
"""Fields of a list, by what to write; the braces stand for the list."""


def operator_at(source: str, position: int) -> str | None:
    """The operator of another language that begins here; None if there is none."""
    match = _OPERATOR.match(source, position)
    return match.group() if match else None


def word_hint(word: str) -> str | None:
    """The replacement for a word that stands where no word can stand."""
    return _WORDS.get(word.lower()) or NAMES.get(word.lower())


def text_prefix_hint(prefix: str) -> str | None:
    """The replacement for a string with a prefix, such as ``f'…'``."""
    return "write 'text' + string(x), or text around ${{ … }}" if prefix.lower() in ("f", "fr", "rf") else None
