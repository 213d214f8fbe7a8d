"""Journeys of a value: the YAML steps that it passes, its exit, and the value that the rules promise after each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.integration.values.oracle import Json, Number, has_nul, is_scalar, map_numbers, text_of

Ending = Literal["passes", "refused", "either"]
"""A receiver that cannot hold a value must refuse it; `either`: it may, or may take the whole value in its own form."""


@dataclass(frozen=True)
class Passed:
    """``path``: where expressions find the value now. ``steps``: YAML of the step that brought it there."""

    path: str
    value: Json
    steps: str = ""
    ending: Ending = "passes"


Pass = Callable[[str, Json, str], Passed | None]
"""Takes path, value and the id of the step; None: this value cannot pass here."""


def _step(id: str, uses: str, arguments: str, *, more: str = "") -> str:
    return f"  - {{id: {id}, uses: {uses}, with: {arguments}, effect: none{more}}}\n"


def _python(path: str, value: Json, id: str) -> Passed:
    return Passed(f"steps.{id}.result", value, _step(id, "echo", f'{{value: "${{{{ {path} }}}}"}}'))


def _decimal(path: str, value: Json, id: str) -> Passed | None:
    if not isinstance(value, Number):
        return None
    return Passed(f"steps.{id}.result", value, _step(id, "money", f'{{amount: "${{{{ {path} }}}}"}}'))


def _count(path: str, value: Json, id: str) -> Passed | None:
    if not isinstance(value, Number) or not value.is_whole:
        return None
    return Passed(f"steps.{id}.result.number", value.whole, _step(id, "count", f'{{number: "${{{{ {path} }}}}"}}'))


def _item(path: str, value: Json, id: str) -> Passed:
    steps = _step(id, "echo", '{value: "${{ item }}"}', more=f', for_each: "${{{{ [null, {path}] }}}}"')
    return Passed(f"steps.{id}.results[1]", value, steps)


def _guarded(path: str, value: Json, id: str) -> Passed:
    return Passed(f"steps.{id}.result.value", value, _step(id, "guarded", f'{{value: "${{{{ {path} }}}}"}}'))


def _computed(path: str, value: Json, id: str) -> Passed | None:
    return Passed(f"({path} + 1)", value.plus(1)) if isinstance(value, Number) else None


def _text(path: str, value: Json, id: str) -> Passed | None:
    if not is_scalar(value):
        return None
    return Passed(f"steps.{id}.result", f"v{text_of(value)}!", _step(id, "echo", f'{{value: "v${{{{ {path} }}}}!"}}'))


def _nested(path: str, value: Json, id: str) -> Passed:
    with_ = f'{{name: part, input: {{doc: "${{{{ {path} }}}}"}}}}'
    return Passed(f"steps.{id}.result", value, f"  - {{id: {id}, uses: saga, with: {with_}}}\n")


def _sql(connection: str, run: str, path: str, id: str) -> str:
    params = f'{{v: "${{{{ {path} }}}}"}}'
    return _step(id, "sql", f'{{connection: {connection}, run: "{run}", params: {params}}}')


def in_numeric(number: Number) -> Number:
    """The form of PostgreSQL's numeric: neither an exponent nor a sign of zero."""
    return Number(number.plain)


def _numeric(path: str, value: Json, id: str) -> Passed | None:
    if not isinstance(value, Number):
        return None
    steps = _sql("postgres", "select cast(:v as numeric) as v", path, id)
    return Passed(f"steps.{id}.result[0].v", in_numeric(value), steps)


def _jsonb(path: str, value: Json, id: str) -> Passed:
    steps = _sql("postgres", "select cast(:v as jsonb) as v", path, id)
    stored = map_numbers(value, in_numeric)
    return Passed(f"steps.{id}.result[0].v", stored, steps, "refused" if has_nul(value) else "passes")


def _stored_text(database: str) -> Pass:
    def through(path: str, value: Json, id: str) -> Passed | None:
        if not isinstance(value, str):
            return None
        steps, is_refused = _sql(database, "select :v as v", path, id), database == "postgres" and has_nul(value)
        return Passed(f"steps.{id}.result[0].v", value, steps, "refused" if is_refused else "passes")

    return through


def _mariadb(path: str, value: Json, id: str) -> Passed | None:
    if not isinstance(value, Number):
        return None
    sign, digits, exponent = value.parts
    if exponent > 0 or exponent < -37 or len(digits) > 65 or (sign and digits == "0"):
        return None
    return Passed(f"steps.{id}.result[0].v", in_numeric(value), _sql("mariadb", "select :v as v", path, id))


def _sqlite(path: str, value: Json, id: str) -> Passed | None:
    if not isinstance(value, Number) or not value.is_integer or not -(2**63) <= int(value.text) < 2**63:
        return None
    return Passed(f"steps.{id}.result[0].v", value, _sql("sqlite", "select :v as v", path, id))


_KEPT = "create table kept (saga text, step text, s smallint, n numeric(9, 2), v varchar(8), c char(8), t {})"
TABLES = {
    "postgres": _KEPT.format("timestamp(3)"),
    "mariadb": _KEPT.format("datetime(3), e enum('0', '1', '2', '3', '12', 'v') collate utf8mb4_bin"),
    "sqlite": _KEPT.format("datetime, r real, w string"),
}
_MEMBERS = ("0", "1", "2", "3", "12", "v")


def _column(database: str, column: str) -> Pass:
    """A column takes the value whole, or refuses it: nothing is cut, rounded or read as another number."""

    def through(path: str, value: Json, id: str) -> Passed | None:
        if not isinstance(value, Number | str) or not _reads(column, value):
            return None
        insert = (
            f'{{sql: "insert into kept (saga, step, {column}) values (:saga, :step, :v)",'
            f' params: {{saga: "${{{{ saga.id }}}}", step: {id}, v: "${{{{ {path} }}}}"}}}}'
        )
        key = f'params: {{saga: "${{{{ saga.id }}}}", step: {id}}}'
        # Not `returning`, which has the integer that SQLite keeps in a real column for 12.0
        select = f'{{sql: "select {column} as v from kept where saga = :saga and step = :step", {key}}}'
        delete = f'run: "delete from kept where saga = :saga and step = :step", {key}'
        undo = f"{{uses: sql, with: {{connection: {database}, {delete}}}}}"
        with_ = f"{{connection: {database}, run: [{insert}, {select}]}}"
        steps = f"  - {{id: {id}, uses: sql, with: {with_}, compensate: {undo}}}\n"
        stored, ending = _as_stored(value, database, column)
        return Passed(f"steps.{id}.result[0].v", stored, steps, ending)

    return through


_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))?")


def _reads(column: str, value: Number | str) -> bool:
    """True if the column may take the value: columns of numbers take no text, and columns of times only times."""
    if column == "t":
        return isinstance(value, str) and _TIME.fullmatch(value) is not None
    return column in ("v", "c", "e", "w") or isinstance(value, Number) or is_number(value)


def _stored_time(text: str, database: str) -> tuple[str, Ending]:
    matched = _TIME.fullmatch(text)
    assert matched is not None
    if database == "sqlite":
        return text, "passes"
    fraction = (matched[2] or "").rstrip("0")
    stored = matched[1].replace(" ", "T") + (f".{fraction.ljust(6, '0')}" if fraction else "")
    return stored, "refused" if len(fraction) > 3 else "passes"


def _stored_characters(text: str, database: str) -> str:
    """The text as char(8) gives it back: PostgreSQL fills it up with blanks, MariaDB takes them off."""
    return {"postgres": text.ljust(8), "mariadb": text.rstrip(" "), "sqlite": text}[database]


def is_number(text: str) -> bool:
    """Text that a column of numbers may read as one."""
    return re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", text) is not None


def _as_stored(value: Json, database: str, column: str) -> tuple[Json, Ending]:
    """The value that the column gives back, and how the journey may end."""
    if column == "t":
        assert isinstance(value, str)
        return _stored_time(value, database)
    if column == "e":
        member = value.rstrip(" ") if isinstance(value, str) else ""
        return (member, "passes") if member in _MEMBERS else (value, "refused")
    if column == "w" and isinstance(value, str):
        return _in_string_of_sqlite(value)
    if column in ("v", "c"):
        text = value if isinstance(value, str) else value.plain
        fits = database == "sqlite" or (len(text) <= 8 and not (database == "postgres" and "\0" in text))
        text = _stored_characters(text, database) if column == "c" and fits else text
        return text, "refused" if not fits else "passes" if isinstance(value, str) else "either"
    if isinstance(value, str):
        stored, ending = _as_stored(Number(value), database, column)
        return stored, "refused" if ending == "refused" else "either"
    stored = _in_sqlite(value, column) if database == "sqlite" else _in_server(value, column)
    return stored or value, "passes" if stored else "refused"


def _in_server(number: Number, column: str) -> Number | None:
    """The number as smallint or as numeric(9, 2); None: it does not fit."""
    sign, digits, exponent = number.value
    if digits == "0":
        return Number("0" if column == "s" else "0.00")
    if exponent > 10 or len(digits) + exponent > 7 or exponent < (0 if column == "s" else -2):
        return None
    if column == "s":
        return number.whole if -(2**15) <= int(number.whole.text) < 2**15 else None
    cents = (digits + "0" * (exponent + 2)).rjust(3, "0")
    return Number(f"{sign}{cents[:-2]}.{cents[-2:]}")


def _in_sqlite(number: Number, column: str) -> Number | None:
    """The number that SQLite gives back, which has integers of eight bytes and doubles, and no sign of zero."""
    if number.value == ("", "0", 0):
        return Number("0.0" if column == "r" else "0")
    double = Number(repr(float(number.text))) if float("-inf") < float(number.text) < float("inf") else None
    is_double = double is not None and double.value == number.value
    is_integer = number.is_whole and number.value[2] < 20 and -(2**63) <= int(number.whole.text) < 2**63
    if number.is_integer and not is_integer:
        return None
    if column == "r":
        return double if is_double else None
    if is_integer:
        return number.whole
    return double if is_double else None


def _in_string_of_sqlite(text: str) -> tuple[Json, Ending]:
    """The number that SQLite makes of text in a column of a type that it does not know, if it has the same digits."""
    if not is_number(text.strip().removeprefix("+")):
        return text, "passes"
    number = _in_sqlite(Number(text), "n") if is_number(text) else None
    is_same = number is not None and text in (number.text, str(float(number.text)))
    return (number, "either") if number is not None and is_same else (text, "refused")


def _request(path: str, value: Json, id: str) -> Passed:
    """The participant returns the value of the command inside its reply."""
    command = f'{{topic: commands, value: {{v: "${{{{ {path} }}}}"}}}}'
    return Passed(f"steps.{id}.result.reply.v", value, _step(id, "kafka.request", command))


PASSES: dict[str, Pass] = {
    "Python": _python,
    "Decimal": _decimal,
    "int": _count,
    "for_each": _item,
    "guarded Python": _guarded,
    "computed": _computed,
    "longer string": _text,
    "nested saga": _nested,
    "numeric": _numeric,
    "jsonb": _jsonb,
    "text of PostgreSQL": _stored_text("postgres"),
    "text of MariaDB": _stored_text("mariadb"),
    "text of SQLite": _stored_text("sqlite"),
    "number of MariaDB": _mariadb,
    "integer of SQLite": _sqlite,
    "kafka.request": _request,
    **{
        f"{type} column of {database}": _column(database, column)
        for database in TABLES
        for column, type in (("s", "smallint"), ("n", "numeric"), ("v", "varchar"), ("c", "char"), ("t", "timestamp"))
    },
    "real column of sqlite": _column("sqlite", "r"),
    "string column of sqlite": _column("sqlite", "w"),
    "enum column of mariadb": _column("mariadb", "e"),
}

EXITS = (
    *("output", "show", "ledger", "json", "answer", "query", "header", "form", "path", "body"),
    *("emit", "publish", "request"),
)
_TEXTS = {
    "query": '{connection: bank, method: POST, path: /, query: {v: "${{ PATH }}"}}',
    "header": '{connection: bank, method: POST, path: /, headers: {x-v: "${{ PATH }}"}}',
    "form": '{connection: bank, method: POST, path: /, form: {v: "${{ PATH }}"}}',
    "path": '{connection: bank, method: POST, path: "/v/${{ PATH }}"}',
    "body": '{connection: bank, method: POST, path: /, body: "v${{ PATH }}"}',
    "json": '{connection: bank, method: POST, path: /, json: {v: "${{ PATH }}"}}',
    "answer": '{connection: bank, method: POST, path: /, json: {v: "${{ PATH }}"}, result: response.json.answer.v}',
}


def exit_steps(way: str, path: str) -> str:
    """The last step of the definition, and its output."""
    source = "${{ " + path + " }}"
    match way:
        case "output" | "show" | "ledger":
            return f"{_step('out', 'echo', '{}')}output: {json.dumps(source)}\n"
        case "emit":
            events = '{connection: mariadb, events: [{topic: t, key: k, value: {v: "${{ PATH }}"}}]}'
            return _last("outbox.emit", events, path)
        case "publish":
            return _last("kafka.publish", '{topic: t, key: k, value: {v: "${{ PATH }}"}}', path)
        case "request":
            command = '{topic: t, value: {v: "${{ PATH }}"}}'
            return _last("kafka.request", command, path) + 'output: "${{ steps.out.result.reply.v }}"\n'
    return _last("http", _TEXTS[way], path) + ('output: "${{ steps.out.result }}"\n' if way == "answer" else "")


def _last(uses: str, arguments: str, path: str) -> str:
    return f"  - {{id: out, uses: {uses}, with: {arguments.replace('PATH', path)}, pivot: true}}\n"


def can_leave(way: str, value: Json) -> bool:
    """True if the exit has a form for the value."""
    if way in ("query", "form", "body"):
        return is_scalar(value)
    if way in ("header", "path"):  # strings that are neither a header nor a segment are refused
        return is_scalar(value) and (not isinstance(value, str) or (value.isalnum() and value.isascii()))
    return True
