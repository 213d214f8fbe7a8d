"""What a value passes through, and how it leaves: YAML steps, and the value that the rules promise after each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.integration.values.oracle import Json, Number, is_scalar, map_numbers, text_of


@dataclass(frozen=True)
class Passed:
    """``path``: where expressions find the value now. ``steps``: YAML of the step that brought it there.

    ``refused``: the step must fail, because its receiver cannot hold the value.
    """

    path: str
    value: Json
    steps: str = ""
    refused: bool = False


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
    return Passed(f"steps.{id}.result[0].v", map_numbers(value, in_numeric), steps)


def _stored_text(database: str) -> Pass:
    def through(path: str, value: Json, id: str) -> Passed | None:
        if not isinstance(value, str):
            return None
        return Passed(f"steps.{id}.result[0].v", value, _sql(database, "select :v as v", path, id))

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


SQLITE_TABLE = "create table amounts (i integer, r real, n numeric, id integer primary key autoincrement)"


def _sqlite_column(column: str) -> Pass:
    """SQLite has integers of eight bytes and doubles: a number is one of them with all its digits, or is refused."""

    def through(path: str, value: Json, id: str) -> Passed | None:
        if not isinstance(value, Number):
            return None
        insert = f'{{sql: "insert into amounts ({column}) values (:v)", params: {{v: "${{{{ {path} }}}}"}}}}'
        # Not `returning`, which has the integer that SQLite keeps in a real column for 12.0
        select = f'{{sql: "select {column} as v from amounts order by id desc limit 1"}}'
        undo = '{uses: sql, with: {connection: sqlite, run: "delete from amounts where id < 0"}}'
        with_ = f"{{connection: sqlite, run: [{insert}, {select}]}}"
        steps = f"  - {{id: {id}, uses: sql, with: {with_}, compensate: {undo}}}\n"
        stored = _as_sqlite_stores(value, column)
        return Passed(f"steps.{id}.result[0].v", stored or value, steps, refused=stored is None)

    return through


def _as_sqlite_stores(number: Number, column: str) -> Number | None:
    """The number that SQLite gives back, which has no sign of zero; None: it would be another amount."""
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
    "integer column of SQLite": _sqlite_column("i"),
    "real column of SQLite": _sqlite_column("r"),
    "numeric column of SQLite": _sqlite_column("n"),
}

EXITS = ("output", "show", "ledger", "json", "answer", "query", "header", "form", "path", "body", "emit", "publish")
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
    return _last("http", _TEXTS[way], path) + ('output: "${{ steps.out.result }}"\n' if way == "answer" else "")


def _last(uses: str, arguments: str, path: str) -> str:
    return f"  - {{id: out, uses: {uses}, with: {arguments.replace('PATH', path)}, pivot: true}}\n"


def can_leave(way: str, value: Json) -> bool:
    """Whether the exit has a form for the value."""
    if way in ("query", "form", "body"):
        return is_scalar(value)
    if way in ("header", "path"):  # strings that are no header or no segment are refused
        return is_scalar(value) and (not isinstance(value, str) or (value.isalnum() and value.isascii()))
    return True
