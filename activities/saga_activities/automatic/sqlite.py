"""Tables of SQLite, as its catalog describes them. A value keeps its own type, whatever that of its column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from saga_activities.automatic.table_shape import Column, ForeignKey, TableShape
from saga_activities.guard.sql_session import Row, SqlSession
from sagas.sql_text.row_changes import NotImageable, TableMissing
from sagas.sql_text.tokens import split_tokens
from sagas.text.sql_names import sql_name

_TABLE = "SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(:name)"
_COLUMNS = "SELECT name, type, pk, hidden FROM pragma_table_xinfo(:name) ORDER BY cid"
_COLLATIONS = """
SELECT x.name AS name, x.coll AS coll FROM pragma_index_list(:name) i JOIN pragma_index_xinfo(i.name) x
WHERE i.origin = 'pk' AND x.key = 1
"""
_TRIGGERS = """
SELECT name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) = lower(:name)
UNION ALL SELECT name FROM sqlite_temp_master WHERE type = 'trigger' AND lower(tbl_name) = lower(:name)
"""
_REFERENCES = """
SELECT m.name AS child, f."to" AS name, f.on_delete AS on_delete, f.on_update AS on_update
FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) f
WHERE m.type = 'table' AND lower(f."table") = lower(:name)
"""
_CHANGING_ACTIONS = ("CASCADE", "SET NULL", "SET DEFAULT")

_OTHER_ROWS = re.compile(r"\bon conflict (replace|ignore)\b", re.IGNORECASE)
"""A constraint that deletes rows or drops a change by itself."""
_VIRTUAL = re.compile(r"create virtual\b", re.IGNORECASE)
"""A table that is a program."""


def _significant(text: str) -> str:
    """The words of a statement with one blank between them, without comments and quoted texts."""
    return " ".join(text[token.start : token.end] for token in split_tokens(text, "sqlite") if token.kind == "word")


async def read_shape(sql: SqlSession, schema: str | None, name: str) -> TableShape:
    """One table of the main database. Raises :class:`NotImageable` if it does not exist."""
    if (schema or "main").lower() != "main":
        raise NotImageable(f"the table {name} is not in the main database")
    table = await sql.one_or_none(_TABLE, {"name": name})
    if table is None:
        raise TableMissing(f"there is no table {name} in this database")
    text = _significant(table["sql"])
    if table["type"] == "view" or _VIRTUAL.match(text):
        raise NotImageable(f"{table['name']} is not an ordinary table")
    where = {"name": table["name"]}
    columns = await sql.all(_COLUMNS, where)
    key = sorted((row for row in columns if row["pk"]), key=lambda row: row["pk"])
    collations = {row["name"]: row["coll"].upper() for row in await sql.all(_COLLATIONS, where)}
    obstacles = []
    if other := _OTHER_ROWS.search(text):
        obstacles.append(f"{table['name']} has `{other[0]}`, which deletes rows or drops changes by itself")
    obstacles += [
        f"{table['name']} has the trigger {row['name']}, which may change other rows"
        for row in await sql.all(_TRIGGERS, where)
    ]
    return TableShape(
        name=table["name"],
        quoted=f"main.{sql_name(table['name'])}",
        key=tuple(row["name"] for row in key),
        columns=tuple(
            _column(row["name"], row["type"], collations.get(row["name"], "BINARY"))
            for row in columns
            if not row["hidden"]
        ),
        references=tuple(_references(await sql.all(_REFERENCES, where), tuple(row["name"] for row in key))),
        obstacles=tuple(obstacles),
        returns_updates=True,
    )


_FOLDED = {"BINARY": "{}", "NOCASE": "lower({})", "RTRIM": "rtrim({}, ' ')"}
"""The text that all texts share that a collation says are equal."""


def _column(name: str, kind: str, collation: str) -> Column:
    quoted = sql_name(name)
    folded = _FOLDED.get(collation)
    # A whole number is equal to the same floating-point number.
    canonical = folded and (
        f"CASE WHEN typeof({quoted}) = 'real' AND {quoted} >= -9223372036854775808.0"
        f" AND {quoted} < 9223372036854775808.0 AND {quoted} = CAST({quoted} AS INTEGER) THEN CAST({quoted} AS INTEGER)"
        f" ELSE {_exact(quoted, folded.format(quoted))} END"
    )
    # Without the plus, CAST gives the text an affinity, and 5 would be equal to '5'.
    compare = f"= +{{}} COLLATE {collation}"
    return Column(name, quoted, kind, _exact(quoted, quoted), "{}", canonical, compare)


def _exact(value: str, text: str) -> str:
    return (
        f"CASE typeof({value}) WHEN 'text' THEN 'text:' || hex(CAST({text} AS BLOB))"
        f" WHEN 'blob' THEN 'blob:' || hex({value}) ELSE {value} END"
    )


def convert(old: str, column: Column, texts: Sequence[str]) -> list[str]:
    """The texts of values whose column had the type ``old`` as the texts of its type now.

    Raises :class:`NotImageable` if the column would now hold other values.
    """
    before, now = _affinity(old), _affinity(column.type)
    kinds = {text.partition(":")[0] for text in texts}
    kept = {
        "BLOB": kinds,
        "TEXT": {"text", "blob"},
        "REAL": {"real", "blob"} | ({"text"} if before == "NUMERIC" else set()),
    }
    if before != now and not kinds <= kept.get(now, {"blob"}):
        raise NotImageable("the new type changes stored values")
    return list(texts)


def _affinity(declared: str) -> str:
    """https://www.sqlite.org/datatype3.html#determination_of_column_affinity, with INTEGER as NUMERIC."""
    name = declared.upper()
    if "INT" in name:
        return "NUMERIC"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in name or not name:
        return "BLOB"
    return "REAL" if any(part in name for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def _references(rows: Iterable[Row], key: tuple[str, ...]) -> Iterator[ForeignKey]:
    for row in rows:
        on_delete, on_update = row["on_delete"] in _CHANGING_ACTIONS, row["on_update"] in _CHANGING_ACTIONS
        if on_delete or on_update:
            yield ForeignKey(row["child"], (row["name"],) if row["name"] else key, on_delete, on_update)


def read_text(value: object) -> str | None:
    """The text of a value as :func:`_column` reads it: numbers are exact, as `integer:5` and `real:0x1.8p+1`."""
    match value:
        case None | str():
            return value
        case int():
            return f"integer:{value}"
        case float():
            return f"real:{value.hex()}"
    raise NotImageable(f"a value of type {type(value).__name__} has no exact text")


def written_value(text: str | None) -> tuple[str, object]:
    """The SQL around the parameter, and its value, for a text of :func:`read_text`."""
    kind, _, text_of_value = (text or "").partition(":")
    match kind:
        case "":
            return "{}", None
        case "integer":
            return "{}", int(text_of_value)
        case "real":
            return "{}", float.fromhex(text_of_value)
        case "blob":
            return "{}", bytes.fromhex(text_of_value)
    return "CAST({} AS TEXT)", bytes.fromhex(text_of_value)


def shown_value(text: str | None) -> str:
    """The text of :func:`read_text` for people."""
    kind, _, text_of_value = (text or "").partition(":")
    match kind:
        case "real":
            return repr(float.fromhex(text_of_value))
        case "text":
            return bytes.fromhex(text_of_value).decode("utf-8", "replace")
    return text_of_value
