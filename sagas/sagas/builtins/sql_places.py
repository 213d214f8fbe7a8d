"""Finds SQL in the arguments of built-in actions, and the parameters that belong to it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sagas.builtins.spark import RECONCILE, SPARK
from sagas.sql_text.dialects import DATABASES, Dialect
from sagas.sql_text.parsed import ParsedSql, parse_sql, shared_differences
from sagas.sql_text.sql_statements import parse_guarded, parse_query, written_rows
from sagas.sql_text.tokens import RefusedStatement

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class SqlPlace:
    """Statements that share parameters. Paths lead to values inside the arguments.

    ``connection`` is the path of the connection whose database runs them; None: Spark does. ``params`` is the path of
    the parameters, None if none can be given. ``all_used``: each parameter belongs to one of the statements.
    """

    statements: tuple[Path, ...]
    connection: Path | None
    params: Path | None = None
    all_used: bool = True


def sql_places(uses: str, arguments: Mapping[str, Any]) -> list[SqlPlace]:
    """The SQL in the arguments of an action, which may be wrong in any way."""
    match uses:
        case "sql":
            return list(_of_sql(arguments))
        case str() if uses == SPARK:
            return list(_of_spark(arguments))
        case str() if uses == RECONCILE:
            sides = [place for side in ("left", "right") for place in _of_input(arguments.get(side), (side,))]
            return [*sides, *_without_params(arguments, "filter", ())]
    return []


def value_at(value: Any, path: Path) -> Any:
    """The value at a path; None if there is none."""
    for part in path:
        if isinstance(part, int):
            value = value[part] if isinstance(value, list) and part < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _of_sql(arguments: Mapping[str, Any]) -> Iterator[SqlPlace]:
    run, outer = arguments.get("run"), ("params",) if "params" in arguments else None
    connection: Path = ("connection",)
    if isinstance(run, str):
        yield SqlPlace((("run",),), connection, outer)
        return
    own: list[tuple[Path, Mapping[str, Any]]] = []
    if isinstance(run, Mapping):
        own = [(("run",), run)]
    elif isinstance(run, list):
        own = [(("run", index), statement) for index, statement in enumerate(run) if isinstance(statement, Mapping)]
    for path, statement in own:
        inherits = isinstance(run, Mapping) and "params" not in statement
        params = outer if inherits else ((*path, "params") if "params" in statement else None)
        yield SqlPlace(((*path, "sql"),), connection, params)


def _of_spark(arguments: Mapping[str, Any]) -> Iterator[SqlPlace]:
    inputs = arguments.get("inputs")
    for name, source in inputs.items() if isinstance(inputs, Mapping) else ():
        yield from _of_input(source, ("inputs", name))
    statements: list[Path] = []
    if isinstance(arguments.get("sql"), str):
        statements.append(("sql",))
    elif isinstance(value_at(arguments, ("job", "sql")), str):
        statements.append(("job", "sql"))
    is_sql = bool(statements)
    audit = arguments.get("audit")
    for index, check in enumerate(audit) if isinstance(audit, list) else ():
        if not isinstance(check, Mapping):
            continue
        path: Path = ("audit", index)
        if isinstance(check.get("sql"), str):
            statements.append((*path, "sql"))
        for field in ("where", "expression"):
            yield from _without_params(check, field, path)
        for inner in (("relationships", "to"), ("reconcile", "with")):
            yield from _of_input(value_at(check, inner), (*path, *inner))
    if statements:
        # A job that is not SQL may also have parameters that are not SQL values.
        params = ("params",) if "params" in arguments else None
        yield SqlPlace(tuple(statements), None, params, all_used=is_sql)


def _of_input(source: Any, path: Path) -> Iterator[SqlPlace]:
    if not isinstance(source, Mapping):
        return
    if "connection" not in source:
        yield from _without_params(source, "where", path)
        return
    fields = tuple((*path, field) for field in ("query", "where") if isinstance(source.get(field), str))
    yield SqlPlace(fields, (*path, "connection"), (*path, "params") if "params" in source else None)


def _without_params(source: Mapping[str, Any], field: str, path: Path) -> Iterator[SqlPlace]:
    if isinstance(source.get(field), str):
        yield SqlPlace(((*path, field),), None)


def possible_dialects(uses: str, place: SqlPlace) -> Sequence[Dialect]:
    """The dialects that the statements may have; those of all databases if the place does not show which one it is."""
    if place.connection is None:
        return ("spark",)
    return DATABASES if uses == "sql" else ("postgresql",)  # the only database from which Spark steps read


def check_sql(uses: str, arguments: Mapping[str, Any], *, reads: bool = False) -> None:
    """Check the SQL of a call and its parameters before anything of it runs. Raises :class:`RefusedStatement`.

    ``reads``: the call must not write. Where the database is not known, what is wrong in all dialects is refused.
    """
    for place in sql_places(uses, arguments):
        refusals = []
        for dialect in possible_dialects(uses, place):
            try:
                _check(uses, place, arguments, dialect, reads=reads)
            except RefusedStatement as error:
                refusals.append(error)
            else:
                break
        else:
            raise refusals[0]


def check_query(place: SqlPlace, arguments: Mapping[str, Any]) -> None:
    """Check the SQL of an input that PostgreSQL computes. Raises :class:`RefusedStatement`."""
    _check(SPARK, place, arguments, "postgresql")


def parse_at(uses: str, path: Path, text: str, dialect: str) -> ParsedSql:
    """The SQL at a path in the arguments of an action. Raises :class:`RefusedStatement` for what its place refuses."""
    if uses == "sql":
        return parse_guarded(text, dialect)
    return parse_query(text, dialect) if path[-1] in ("query", "sql") else parse_sql(text, dialect)


def _check(uses: str, place: SqlPlace, arguments: Mapping[str, Any], dialect: str, *, reads: bool = False) -> None:
    """Compare parameters and placeholders both ways in one place. Raises :class:`RefusedStatement`."""
    given = value_at(arguments, place.params) if place.params else {}
    names = given if isinstance(given, Mapping) else {}
    if not place.statements and names:
        raise RefusedStatement(f"{_shown(place.params or ())} belongs to no SQL", help="remove it")
    parsed = []
    for path in place.statements:
        try:
            parsed.append(parse_at(uses, path, value_at(arguments, path), dialect))
        except RefusedStatement as error:
            raise RefusedStatement(f"{_shown(path)}: {error.message}", help=error.help) from None
        if reads and (keyword := written_rows(parsed[-1])) is not None:
            raise RefusedStatement(f"{_shown(path)}: the step has `effect: none`, and {keyword} is a write")
    for statement, differs in shared_differences(parsed, names, all_used=place.all_used):
        raise RefusedStatement(f"{_shown(place.statements[statement])}: {differs.message}", help=differs.help)


def _shown(path: Path) -> str:
    return f"`{''.join(f'[{part}]' if isinstance(part, int) else f'.{part}' for part in path).removeprefix('.')}`"
