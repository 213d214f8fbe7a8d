"""Tables of MySQL and MariaDB, as the information schema describes them.

Numbers and times are read as decimal text, bytes as hexadecimal, and so is text that is not in UTF-8: in other sets of
characters several codes may become the same one of Unicode, or none. Types without an exact text are refused.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

from sqlalchemy.exc import DBAPIError

from saga_activities.automatic.table_shape import UNCERTAIN, Column, ForeignKey, TableShape
from saga_activities.guard.sql_session import Row, SqlSession
from saga_activities.session_settings import SQL_MODE
from sagas.sql_text.restoring_script import RESTORING_SQL_MODE
from sagas.sql_text.row_changes import ChangeKind, NotImageable, TableMissing
from sagas.text.sql_names import backquoted

_TABLE = """
SELECT table_schema AS table_schema_, table_name AS table_name_, table_type AS kind, engine AS engine_,
  version() AS version_, table_schema = database() AS own,
  EXISTS (SELECT 1 FROM information_schema.tables l
    WHERE l.table_schema = t.table_schema AND l.table_name = 'saga_row_lock') AS has_locks
FROM information_schema.tables t WHERE table_schema = coalesce(:schema, database()) AND table_name = :name
"""
_COLUMNS = """
SELECT column_name AS name, data_type AS type, column_type AS column_type_, extra AS extra_,
  generation_expression AS generated, numeric_precision AS digits, numeric_scale AS scale,
  character_maximum_length AS length_, character_set_name AS charset_, collation_name AS collation_
FROM information_schema.columns WHERE table_schema = :schema AND table_name = :name ORDER BY ordinal_position
"""
_KEYS = """
SELECT index_name AS index_, column_name AS name, sub_part AS prefix FROM information_schema.statistics
WHERE table_schema = :schema AND table_name = :name AND non_unique = 0 ORDER BY index_name, seq_in_index
"""
_TRIGGERS = """
SELECT trigger_name AS name FROM information_schema.triggers
WHERE event_object_schema = :schema AND event_object_table = :name ORDER BY trigger_name
"""
_MAY_SEE_TRIGGERS = """
SELECT 1 AS yes FROM (
  SELECT grantee, privilege_type FROM information_schema.user_privileges
  UNION ALL SELECT grantee, privilege_type FROM information_schema.schema_privileges WHERE :schema LIKE table_schema
  UNION ALL SELECT grantee, privilege_type FROM information_schema.table_privileges
    WHERE table_schema = :schema AND table_name = :name
) AS granted
WHERE privilege_type = 'TRIGGER' AND grantee = concat('''', replace(current_user(), '@', '''@'''), '''') LIMIT 1
"""
_REFERENCES = """
SELECT r.table_name AS table_, r.delete_rule AS on_delete, r.update_rule AS on_update,
  k.referenced_column_name AS name
FROM information_schema.referential_constraints r
JOIN information_schema.key_column_usage k
  ON k.constraint_schema = r.constraint_schema AND k.constraint_name = r.constraint_name
  AND k.table_name = r.table_name
WHERE r.unique_constraint_schema = :schema AND r.referenced_table_name = :name
"""
_MAY_SEE_REFERENCES = """
SELECT 1 AS yes FROM (
  SELECT grantee, privilege_type FROM information_schema.user_privileges
    WHERE privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'REFERENCES', 'TRIGGER', 'CREATE', 'ALTER', 'DROP')
  UNION ALL SELECT grantee, privilege_type FROM information_schema.schema_privileges WHERE :schema LIKE table_schema
) AS granted
WHERE privilege_type <> 'USAGE' AND grantee = concat('''', replace(current_user(), '@', '''@'''), '''') LIMIT 1
"""
"""A right on the whole database: the catalog shows a table only to a user who has a right on it."""
_NULLABLE_REFERENCES = """
SELECT DISTINCT c.column_name AS name FROM information_schema.key_column_usage k JOIN information_schema.columns c
  ON c.table_schema = k.table_schema AND c.table_name = k.table_name AND c.column_name = k.column_name
WHERE k.table_schema = :schema AND k.table_name = :name AND k.referenced_table_name IS NOT NULL
  AND c.is_nullable = 'YES'
"""
_TEXT_TYPES = frozenset(
    """
    tinyint smallint mediumint int bigint decimal char varchar tinytext text mediumtext longtext
    date datetime timestamp time year enum set json double uuid inet4 inet6
    """.split()  # noqa: SIM905
)
_BYTE_TYPES = frozenset(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"))
_CHANGING_RULES = ("CASCADE", "SET NULL", "SET DEFAULT")
_ENGINES = ("InnoDB",)
_NO_KEYS = "MySQL does not return the keys of inserted rows, as MariaDB does"


@asynccontextmanager
async def restoring_session(sql: SqlSession) -> AsyncIterator[None]:
    """Let a session write every value that a row may have, as its image has it; it is read again afterwards."""
    is_mysql = sql.dialect in ("mysql", "mariadb")
    if is_mysql:
        await sql.control(f"SET SESSION sql_mode = '{RESTORING_SQL_MODE}'")
    sql.writes_images = True
    try:
        yield
    finally:
        sql.writes_images = False
    if is_mysql:
        # After an error the transaction ends, and its session is cleaned.
        await sql.control(f"SET SESSION sql_mode = '{SQL_MODE}'")


async def read_shape(sql: SqlSession, schema: str | None, name: str) -> TableShape:
    """One table. Raises :class:`NotImageable` if it does not exist."""
    table = await sql.one_or_none(_TABLE, {"schema": schema, "name": name})
    if table is None:
        raise TableMissing(f"there is no table {name} in this database")
    where = {"schema": table["table_schema_"], "name": table["table_name_"]}
    shown = f"{where['schema']}.{where['name']}"
    columns = await sql.all(_COLUMNS, where)
    keys: dict[str, list[str]] = {}
    obstacles = [*_table_obstacles(table, columns, shown)]
    for row in await sql.all(_KEYS, where):
        keys.setdefault(row["index_"], []).append(row["name"])
        if row["index_"] == "PRIMARY" and row["prefix"] is not None:
            obstacles.append(f"the primary key of {shown} covers only a prefix of the column {row['name']}")
    triggers = await sql.all(_TRIGGERS, where)
    if triggers:
        obstacles.append(f"{shown} has the trigger {triggers[0]['name']}, which may change other rows")
    elif await sql.one_or_none(_MAY_SEE_TRIGGERS, where) is None:
        obstacles.append(f"the user of the connection cannot see whether {shown} has triggers; grant it TRIGGER")
    if await sql.one_or_none(_MAY_SEE_REFERENCES, {"schema": where["schema"]}) is None:
        obstacles.append(
            f"the user of the connection cannot see which tables refer to {shown} and would lose rows with it;"
            f" grant it TRIGGER on {backquoted(where['schema'])}.*"
        )
    return TableShape(
        name=shown,
        quoted=f"{backquoted(where['schema'])}.{backquoted(where['name'])}",
        key=tuple(keys.get("PRIMARY", ())),
        columns=tuple(_column(row) for row in columns if not row["generated"]),
        references=tuple(_references(await sql.all(_REFERENCES, where))),
        unique_keys=tuple(tuple(key) for key in keys.values()),
        obstacles=tuple(obstacles),
        lock_table="saga_row_lock" if table["own"] else f"{backquoted(where['schema'])}.saga_row_lock",
        insert_obstacle=None if "mariadb" in table["version_"].lower() else _NO_KEYS,
    )


def _table_obstacles(table: Row, columns: Sequence[Row], shown: str) -> Iterator[str]:
    if table["kind"] != "BASE TABLE":
        is_versioned = table["kind"] == "SYSTEM VERSIONED"
        history = " (WITH SYSTEM VERSIONING keeps all rows in a history, which no undo removes)"
        yield f"{shown} is not an ordinary table{history if is_versioned else ''}"
    elif table["engine_"] not in _ENGINES:
        yield f"the engine of {shown} ({table['engine_']}) has no transactions; use InnoDB"
    if not table["own"] and not table["has_locks"]:
        yield (
            f"{shown} is in another database than the connection, without a table saga_row_lock that its user may"
            f" write, so connections would not see each other's locks; run `saga setup` with a connection to it"
        )
    for row in columns:
        if row["type"].lower() not in _TEXT_TYPES | _BYTE_TYPES | {"float", "bit"}:
            yield f"values of the column {row['name']} of {shown} ({row['type']}) have no exact text"


_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")
_CHARACTERS = ("char", "varchar")
_UTF8 = ("utf8", "utf8mb3", "utf8mb4")
"""Character sets whose codes are read as the text that they are."""
_NO_MEMBER = "0 (no value of the enum)"
"""The text in images for number 0 of an enum, which a session without strict mode stores for a wrong value. The
database reads it as '', which may also be a member of the enum."""
_WEIGHTS = 18
"""The longest expansion of one character: a string is padded to as many weights."""


def _column(row: Row) -> Column:
    quoted, kind = backquoted(row["name"]), row["type"].lower()
    rewritten = "on update" in row["extra_"].lower()
    # Zeros in front of a number are a way to show it, which a migration may change.
    number = f"{quoted} + 0" if "zerofill" in row["column_type_"].lower() else quoted
    read, write = f"CAST({number} AS CHAR)", "{}"
    if kind in _BYTE_TYPES:
        read, write = f"HEX({quoted})", "UNHEX({})"
    elif (charset := row["charset_"]) not in (None, *_UTF8):
        # The default collation of the set would be no better than that of the column, and an error.
        read = f"HEX({quoted})"
        write = f"CONVERT(UNHEX({{}}) USING {charset}) COLLATE {row['collation_']}"
    elif kind == "float":
        read = f"CAST(CAST({quoted} AS DOUBLE) AS CHAR)"
    elif kind == "bit":
        read, write = f"CAST({quoted} + 0 AS CHAR)", "CAST({} AS UNSIGNED)"
    if kind == "enum":
        read = f"CASE WHEN {quoted} + 0 = 0 THEN '{_NO_MEMBER}' ELSE {read} END"
    canonical, compare = read, write
    if kind in _INTEGERS:  # the text of a number would be compared as a floating-point number
        compare = f"CAST({{}} AS {'UNSIGNED' if 'unsigned' in row['column_type_'].lower() else 'SIGNED'})"
    elif kind == "decimal":
        compare = f"CAST({{}} AS DECIMAL({row['digits']}, {row['scale']}))"
        if row["scale"]:
            canonical = f"TRIM(TRAILING '.' FROM TRIM(TRAILING '0' FROM {read}))"
    elif kind in ("float", "double"):
        canonical, compare = f"CAST({quoted} + 0e0 AS CHAR)", "CAST({} AS DOUBLE)"
    elif kind in _CHARACTERS:
        canonical = f"HEX(WEIGHT_STRING({quoted}{_padding(row)}))"
    elif row["collation_"] is not None and kind not in ("enum", "set"):
        canonical = None
    declared = row["column_type_"]
    if row["charset_"] is not None:
        declared += f" character set {row['charset_']} collate {row['collation_']}"
    return Column(row["name"], quoted, declared, read, write, canonical, f"= {compare}", rewritten)


def _padding(row: Row) -> str:
    """Blanks at the end do not count, unless the collation says so."""
    collation = row["collation_"].lower()
    return "" if "nopad" in collation or "_0900_" in collation else f" AS CHAR({int(row['length_']) * _WEIGHTS})"


_FAMILIES = (
    _INTEGERS,
    ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"),
    tuple(_BYTE_TYPES),
    ("date",),
    ("datetime",),
    ("timestamp",),
    ("time",),
)
"""Types whose values have the same texts, whatever the session that changes a column from one to another."""


async def convert(sql: SqlSession, old: str, column: Column, texts: Sequence[str]) -> list[str]:
    """The texts of values whose column had the type ``old`` as the texts of its type now, as a migration stores them.

    Raises :class:`NotImageable` if that is not known; whether the column holds them is seen when they are written.
    """
    before, now = _name_of_type(old), _name_of_type(column.type)
    if _charset(old) != _charset(column.type):
        raise NotImageable("text of another character set may be another one")
    if before == "enum" and now != "enum":
        texts = ["" if text == _NO_MEMBER else text for text in texts]
    if now == "decimal" and before in (*_INTEGERS, "decimal"):
        _, _, scale = column.type.partition(",")
        return [_with_scale(text, int(scale.rstrip(") zerofilunsgd") or 0)) for text in texts]
    if not any(before in family and now in family for family in _FAMILIES):
        raise NotImageable(UNCERTAIN)
    if before in ("datetime", "timestamp", "time"):
        digits = int((re.search(r"\((\d+)\)", column.type) or ["", "0"])[1])
        return [_with_scale(text, digits) for text in texts]
    if now == "binary":
        length = int((re.search(r"\((\d+)\)", column.type) or ["", "1"])[1])
        return [text.ljust(2 * length, "0") for text in texts]
    if now == "char" and _charset(column.type) is None:
        return [text.rstrip(" ") for text in texts]
    if now in ("enum", "set") and _charset(column.type) is None:
        return await _as_members(sql, column.type, texts)
    return list(texts)


async def _as_members(sql: SqlSession, declared: str, texts: Sequence[str]) -> list[str]:
    """The texts of an `enum` or `set` with its members, which its collation finds, in their order."""
    match = re.fullmatch(r"(enum|set)\((.*)\) character set (\w+) collate (\w+)", declared, re.DOTALL)
    assert match is not None
    kind, members, charset, collation = match.groups()
    lists = [[text] if kind == "enum" or text == "" else text.split(",") for text in texts]
    number = f"FIELD(CONVERT(:word USING {charset}) COLLATE {collation}, {members})"
    numbered: dict[str, tuple[int, str]] = {}
    for word in {word for words in lists for word in words}:
        row = await sql.one(f"SELECT {number} AS number, ELT({number}, {members}) AS member", {"word": word})
        numbered[word] = (row["number"], word if row["member"] is None else row["member"])
    return [",".join(member for _, member in sorted({numbered[word] for word in words})) for words in lists]


def check_kept(column: Column, texts: Sequence[str], converted: Sequence[str]) -> None:
    """Raise :class:`NotImageable` if a column drops blanks from one of these values, or adds zeros to it."""
    kind = _name_of_type(column.type)
    if kind in ("char", "binary", "enum", "set") and list(map(len, texts)) != list(map(len, converted)):
        way = "adds zeros to a value" if kind == "binary" else "drops blanks from a value"
        raise NotImageable(f"the new type {way} that the undo would have to restore")


def _charset(declared: str) -> str | None:
    """The character set whose bytes are read; None if there is none."""
    match = re.search(r" character set (\w+) collate \w+$", declared)
    return None if match is None or match[1] in _UTF8 else match[1]


_CODECS = {"latin1": "cp1252", "koi8r": "koi8_r", "koi8u": "koi8_u", "hp8": "hp_roman8", "macce": "mac_latin2"}
_CODECS |= {"ucs2": "utf_16_be", "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be"}
"""Names in Python of character sets that have another one there."""


def shown_value(kind: str, text: str) -> str:
    """The text of an image for people: of bytes the text, if Python knows the character set of the type ``kind``."""
    charset = _charset(kind)
    if charset is None or text == _NO_MEMBER:
        return text
    try:
        return bytes.fromhex(text).decode(_CODECS.get(charset, charset))
    except (LookupError, UnicodeDecodeError):
        return f"x'{text}'"


def _name_of_type(declared: str) -> str:
    return (re.match(r"\w+", declared.lower()) or [""])[0]


def _with_scale(text: str, digits: int) -> str:
    """A number or a time with as many digits of its fraction. Raises :class:`NotImageable` if it has more."""
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0")
    if len(fraction) > digits:
        raise NotImageable(f"the value {text} has more digits than the new type")
    return f"{whole}.{fraction.ljust(digits, '0')}" if digits else whole


def _references(rows: Iterable[Row]) -> Iterator[ForeignKey]:
    for row in rows:
        on_delete, on_update = row["on_delete"] in _CHANGING_RULES, row["on_update"] in _CHANGING_RULES
        if on_delete or on_update:
            yield ForeignKey(row["table_"], (row["name"],), on_delete, on_update)


async def open_references(sql: SqlSession, table: TableShape, condition: str, values: Mapping[str, object]) -> None:
    """Set the foreign keys of some rows to NULL: InnoDB refuses to delete a row that refers to itself."""
    schema, _, name = table.name.partition(".")
    columns = [backquoted(row["name"]) for row in await sql.all(_NULLABLE_REFERENCES, {"schema": schema, "name": name})]
    if columns:
        assignments = ", ".join(f"{column} = NULL" for column in columns)
        await sql.run(f"UPDATE {table.quoted} SET {assignments} WHERE {condition}", values)


async def check_rights(sql: SqlSession, shape: TableShape, kind: ChangeKind) -> None:
    """Raise :class:`NotImageable` if the user may not run the statement that undoes one of this kind.

    The server checks rights when it prepares a statement; nothing is run.
    """
    undo = {"insert": f"DELETE FROM {shape.quoted} WHERE 1 = 0"}
    columns = ", ".join(column.quoted for column in shape.columns)
    undo["delete"] = f"INSERT INTO {shape.quoted} ({columns}) VALUES ({', '.join('NULL' for _ in shape.columns)})"
    if kind not in undo:
        return
    text = undo[kind].replace("\\", "\\\\").replace("'", "''")
    try:
        await sql.control(f"PREPARE saga_undo FROM '{text}'")
    except DBAPIError as error:
        if (error.orig.args[:1] if error.orig else None) not in ((1142,), (1143,)):
            raise
        right = "delete" if kind == "insert" else "insert"
        raise NotImageable(
            f"its undo needs the right to {right} in {shape.name}; grant {right} on {shape.quoted} to the user of the"
            " connection"
        ) from error
    await sql.control("DEALLOCATE PREPARE saga_undo")
