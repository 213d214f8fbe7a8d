"""Changes a table in such a way that the change can be reverted exactly.

``saga_before_<key>`` holds complete copies of the deleted or changed rows. ``saga_after_<key>`` holds, for each written
row, its key and a hash of all its columns (for a table without a primary key the hash alone, once per row). The undo
compares the hashes first, so that it leaves alone what others have changed since. Rows that are already as before the
publication, because somebody has restored them by hand, count as undone (see later_changes.py for those that a later
publication has made so).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from saga_spark.job.job_spec import Output
from saga_spark.manifest import Target
from saga_spark.sinks.postgresql.tables import (
    FOREIGN_KEY_COLUMNS,
    PgConnection,
    TargetTable,
    database_message,
    identifiers,
    keys_equal,
)
from saga_spark.sinks.postgresql.where_clause import value_literal, where_clause
from saga_spark.sinks.sink import UndoConflict
from sagas.errors import Rejected
from sagas.text.shortening import counted, shorten

ROW_HASH = "saga_row_hash"
SAMPLES = 10
"""Maximum number of rows in a report."""

TO_DO = "change that back, then `retry`, or restore the rows by hand, then `done`"
"""The advice about rows or columns that others have changed."""

SHOWN_VALUE = 100
"""Maximum characters of a value in a report."""


_WRITTEN = (
    "select t.*, t.tableoid as saga_part, t.ctid as saga_place from {table} as t join {after} as a on {same} "
    "where not {replaced}"
)
"""The rows that the undo deletes."""

_LEAVE_OUT_BY_KEY = """
with undone as materialized (
  select k.* from (select {key} from {after} union select {key} from {before}) as k
  left join {table} as t on {t_k} left join {after} as a on {a_k} left join {before} as b on {b_k}
  where case when {has_a} then not {has_t} or {row} is distinct from a.{hash} else {has_t} end
    and case when {has_b} then {has_t} and {row} is not distinct from {old} else not {has_t} end
), written as (delete from {after} as a using undone as u where {a_u}),
replaced as (delete from {before} as b using undone as u where {b_u})
select count(*) from undone
"""

_AS_BEFORE_WITHOUT_KEY = """
with o as (select {old} as {hash}, count(*) as n from {before} as a group by 1),
n as (select {row} as {hash}, count(*) as n from {table} as t group by 1)
select (exists (select from {after}) or exists (select from {before}))
       and not exists (select from o full join n using ({hash}) where o.n is distinct from n.n)
"""
"""True if the table has exactly the rows that were replaced. Nothing less proves it: any other row may be one that was
written and has been changed since."""

_CASCADES = f"""
select c.conrelid::regclass::text, c.conrelid,
{FOREIGN_KEY_COLUMNS}
from pg_constraint c
where c.contype = 'f' and c.conparentid = 0::oid and c.confdeltype in ('c', 'n', 'd')
      and c.confrelid in (select %(table)s::oid union select relid::oid from pg_catalog.pg_partition_tree(%(table)s))
"""
"""Foreign keys that delete or change the rows that refer to a deleted row."""


@dataclass(frozen=True, slots=True)
class TableChange:
    """One change of one table. ``key`` identifies rows: the merge's key, else the primary key; () if there is none.

    ``retyped``: the types that columns had at the publication and have no longer. Their values are compared as values
    of these types; one that does not survive the conversion there and back differs.
    """

    connection: PgConnection
    target: Target
    table: TargetTable
    mode: str
    key: tuple[str, ...]
    retyped: Mapping[str, str] = field(default_factory=dict)

    @property
    def before_name(self) -> str:
        return f"saga_before_{self.target.name}"

    @property
    def after_name(self) -> str:
        return f"saga_after_{self.target.name}"

    @property
    def before_image(self) -> sql.Identifier:
        return sql.Identifier(self.before_name)

    @property
    def after_image(self) -> sql.Identifier:
        return sql.Identifier(self.after_name)

    def apply(self, stage: str, columns: Sequence[str], output: Output, rows: int) -> dict[str, int]:
        """Write the stage table's rows; returns the numbers inserted, deleted and updated. Requires the table lock.

        Raises Rejected if a trigger of the table skips or changes rows, or keeps those that are replaced.
        """
        self._execute("drop table if exists {before}, {after}")
        self._execute("create table {before} as select {all} from {table} with no data")
        self._execute("create table {after} as select {keys} null::uuid as {hash} from {table} with no data")
        deleted = 0
        if self.mode in ("overwrite", "overwrite_where"):
            where = where_clause(output.where if self.mode == "overwrite_where" else {})
            deleted = self._execute(
                "with gone as (delete from {table} where {where} returning {all}) "
                "insert into {before} select {all} from gone",
                where=where,
            )
            if self.table.before_triggers:
                self._refuse("keeps", self.fetch_number("select count(*) from {table} where {where}", where=where))
        updated, conflict = 0, sql.SQL("")
        if self.mode == "merge":
            conflict, updated = self._prepare_merge(sql.Identifier(stage), columns)
        put = (
            "with put as (insert into {table} as t ({columns}) select {columns} from {stage} {conflict} "
            "returning {own}), kept as (insert into {after} select {keys} {row} from put as t returning 1) "
        )
        parts = {"columns": identifiers(columns), "stage": sql.Identifier(stage), "conflict": conflict}
        if not self.table.before_triggers:
            written = self.fetch_number(put + "select count(*) from kept", **parts)
        else:
            # Compared as text, because json and other types have no equality.
            differ = "select row({columns})::text from put except all select row({columns})::text from {stage}"
            counted = self.compose(
                put + f"select (select count(*) from kept), (select count(*) from ({differ}) as d)", **parts
            )
            written, changed = self.connection.execute(counted).fetchone() or (0, 0)
            self._refuse("changes", changed)
            if self.mode == "merge":
                same = keys_equal("t", "s", self.key)
                absent = "select count(*) from {stage} as s where not exists (select from {table} as t where {same})"
                self._refuse("skips", self.fetch_number(absent, same=same, **parts))
        if self.mode != "merge" or set(columns) != set(self.key):
            self._refuse("skips", rows - written)
        return {"inserted": written - updated, "deleted": deleted, "updated": updated}

    def _refuse(self, verb: str, rows: int) -> None:
        if rows:
            names = " or ".join(self.table.before_triggers)
            raise Rejected(
                f"the trigger {names} of {self.table.qualified_name} {verb} {counted(rows, 'row')}; let it write "
                "elsewhere only, or make the output as the trigger would"
            )

    def revert(self) -> dict[str, int]:
        """Revert the change if every row still is as it was written, or as before. Requires the table's lock.

        Raises UndoConflict if rows were changed, deleted or replaced since; the caller must roll back.
        """
        if not self.has_images():
            raise UndoConflict(
                f"the undo data of {self.table.qualified_name} is no longer kept",
                {"table": self.table.qualified_name},
            )
        undone = self._leave_out_undone()
        self._check_unchanged("{after}", "a.{hash}", "changed or deleted after the publication", TO_DO)
        updated = self._restore_updated() if self.mode == "merge" else 0
        self._check_unreferenced()
        written = self.fetch_number("select count(*) from {after} as a where not {replaced}", **self._written_parts())
        deleted = self._delete_written()
        if kept := written - deleted:
            raise UndoConflict(
                f"{counted(kept, 'row')} of {self.table.qualified_name} {'was' if kept == 1 else 'were'} kept by a "
                "trigger when deleted",
                {"table": self.table.qualified_name, "rows": kept},
            )
        restored = 0
        if self.mode != "merge":
            writable = identifiers([column.name for column in self.table.columns if not column.generated])
            restored = self._execute(
                "insert into {table} ({columns}) overriding system value select {columns} from {before}",
                columns=writable,
            )
        was = "md5(row({was})::text)::uuid"
        how = "by a trigger" if not self.retyped else "by the new type of a column"
        self._check_unchanged("{before}", was, f"changed {how} when restored")
        return {
            "deleted": deleted,
            "restored": restored,
            "updated": updated,
            **({"as_before": undone} if undone else {}),
        }

    def drop_images(self) -> None:
        """Drop the images; the change cannot be reverted any more."""
        self._execute("drop table if exists {before}, {after}")

    def _prepare_merge(self, stage: sql.Identifier, columns: Sequence[str]) -> tuple[sql.Composable, int]:
        key = identifiers(self.key)
        changed = [name for name in columns if name not in self.key]
        if not changed:
            return sql.SQL("on conflict ({}) do nothing").format(key), 0
        updated = self._execute(
            "insert into {before} select {own} from {table} as t join {stage} as s on {same}",
            stage=stage,
            same=keys_equal("t", "s", self.key),
        )
        sets = sql.SQL(", ").join(
            sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in changed
        )
        return sql.SQL("on conflict ({}) do update set {}").format(key, sets), updated

    def _leave_out_undone(self) -> int:
        """Remove the rows from the images that are as before the publication, and not as it wrote them; their number.

        Without a key a changed row cannot be told from a deleted one: all are left out, or none.
        """
        if self.key:
            sides = {
                f"{left}_{right}": keys_equal(left, right, self.key) for left, right in ("tk", "ak", "bk", "au", "bu")
            }
            has = {f"has_{side}": sql.SQL("{} is not null").format(sql.Identifier(side, self.key[0])) for side in "tab"}
            old = self.compose("md5(row({was})::text)::uuid", was=identifiers(self.table.column_names, "b"))
            key = identifiers(self.key)
            return self.fetch_number(_LEAVE_OUT_BY_KEY, key=key, old=old, **sides, **has)
        if not self.is_as_before_without_key():
            return 0
        return self._execute("delete from {after}") + self._execute("delete from {before}")

    def is_as_before_without_key(self) -> bool:
        """Return whether a table without a key has exactly the rows that the publication replaced."""
        old = self.compose("md5(row({was})::text)::uuid")
        return bool(self.fetch_number(_AS_BEFORE_WITHOUT_KEY, old=old))

    def _check_unchanged(self, image: str, image_hash: str, problem: str, to_do: str | None = None) -> None:
        """Check that every row of an image is unchanged in the table. Raises UndoConflict with the other rows."""
        same = there = sql.SQL("")
        if not self.key:
            count = self.fetch_number(
                "select coalesce(sum(a.n - least(a.n, coalesce(t.n, 0))), 0)::bigint from ("
                f"select {image_hash} as {{hash}}, count(*) as n from {image} as a group by 1) as a left join ("
                "select {row} as {hash}, count(*) as n from {table} as t group by 1) as t using ({hash})"
            )
        else:
            same, there = keys_equal("t", "a", self.key), sql.Identifier("t", self.key[0])
            count = self.fetch_number(f"select count(*) {_differing(image, image_hash)}", same=same, there=there)
        if not count:
            return
        name = self.table.qualified_name
        report: dict[str, Any] = {"table": name, "rows": count}
        if self.key:
            pairs = sql.SQL(", ").join(
                sql.SQL("{}, {}::text").format(sql.Literal(column), sql.Identifier("a", column)) for column in self.key
            )
            replaced = keys_equal("b", "a", self.key)
            samples = self.compose(
                f"select jsonb_build_object({{pairs}}) as key, (select {_TEXTS.format(row='b')} from {{before}} as b "
                f"where {{replaced}} limit 1) as before, case when {{there}} is not null then "
                f"(select {_TEXTS.format(row='t')}) end as now {_differing(image, image_hash)} limit {SAMPLES}",
                same=same, there=there, pairs=pairs, replaced=replaced,
            )  # fmt: skip
            with self.connection.cursor(row_factory=dict_row) as cursor:
                report["samples"] = [_sample(row) for row in cursor.execute(samples).fetchall()]
        message = f"{counted(count, 'row')} of {name} {'was' if count == 1 else 'were'} {problem}"
        raise UndoConflict(f"{message}; {to_do}" if to_do else message, report)

    def _restore_updated(self) -> int:
        fixed = [column.name for column in self.table.columns if column.generated or column.always_identity]
        columns = [name for name in self.table.column_names if name not in fixed and name not in self.key]
        if not columns:
            return 0
        sets = sql.SQL(", ").join(
            sql.SQL("{} = b.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in columns
        )
        return self._execute(
            "update {table} as t set {sets} from {before} as b where {same}",
            sets=sets,
            same=keys_equal("t", "b", self.key),
        )

    def _check_unreferenced(self) -> None:
        """Check that no row of others refers to a row that the undo deletes, and would be deleted or changed with it.

        Raises UndoConflict.
        """
        for name, child, referencing, referenced in self.connection.execute(
            _CASCADES, {"table": self.table.oid}
        ).fetchall():
            parts = self._written_parts()
            self._execute("lock table {table} in exclusive mode")  # a new reference would need a lock of its row
            pairs = sql.SQL(" and ").join(
                sql.SQL("{} = {}").format(sql.Identifier("c", column), sql.Identifier("w", other))
                for column, other in zip(referencing, referenced, strict=True)
            )
            others = f"select count(*) from {{child}} as c where exists (select from ({_WRITTEN}) as w where {{pairs}})"
            if child == self.table.oid:
                others += f" and (c.tableoid, c.ctid) not in (select saga_part, saga_place from ({_WRITTEN}) as w)"
            label = sql.SQL(name)  # pyright: ignore[reportArgumentType]  # regclass has quoted it
            if count := self.fetch_number(others, child=label, pairs=pairs, **parts):
                raise UndoConflict(
                    f"{counted(count, f'row of {name} refers', f'rows of {name} refer')} to rows of "
                    f"{self.table.qualified_name} that the undo deletes, and would be deleted or changed with them",
                    {"table": self.table.qualified_name, "references": name, "rows": count},
                )

    def _written_parts(self) -> dict[str, sql.Composable]:
        """The placeholders of ``_WRITTEN``."""
        if not self.key:
            return {"same": self.compose("{row} = a.{hash}"), "replaced": sql.SQL("false")}
        still = keys_equal("b", "a", self.key)
        replaced = self.compose("exists (select from {before} as b where {still})", still=still)
        same = keys_equal("t", "a", self.key)
        return {"same": same, "replaced": replaced if self.mode == "merge" else sql.SQL("false")}

    def _delete_written(self) -> int:
        if self.key:
            return self._execute(
                "delete from {table} as t using {after} as a where {same} and not {replaced}", **self._written_parts()
            )
        # Rows without a key are interchangeable if equal: only the number of deleted rows matters.
        return self._execute(
            "delete from {table} as t using ("
            "  select t.tableoid as part, t.ctid as place, {row} as {hash},"
            "         row_number() over (partition by {row}) as n from {table} as t) as found, "
            "  (select {hash}, count(*) as n from {after} group by {hash}) as a "
            "where t.tableoid = found.part and t.ctid = found.place and found.{hash} = a.{hash} and found.n <= a.n"
        )

    def has_images(self) -> bool:
        name = self.after_image.as_string(self.connection)
        return self.fetch_number("select count(to_regclass({name}))", name=sql.Literal(name)) == 1

    def compose(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        own = identifiers(self.table.column_names, "t")
        keys = sql.SQL("{}, ").format(identifiers(self.key)) if self.key else sql.SQL("")
        return sql.SQL(statement).format(  # pyright: ignore[reportArgumentType]
            **{
                "table": self.table.sql,
                "before": self.before_image,
                "after": self.after_image,
                "all": identifiers(self.table.column_names),
                "own": own,
                "was": identifiers(self.table.column_names, "a"),
                "keys": keys,
                "row": self.row_hash(),
                "hash": sql.Identifier(ROW_HASH),
                **parts,
            }
        )

    def row_hash(self) -> sql.Composed:
        """The hash of a row as it was published; null if a value does not fit the type that its column had."""
        own = {name: sql.Identifier("t", name) for name in self.table.column_names}
        cast = {name: sql.SQL("{}::{}").format(own[name], _type(type)) for name, type in self.retyped.items()}
        row_hash = sql.SQL("md5(row({})::text)::uuid").format(sql.SQL(", ").join({**own, **cast}.values()))
        if not cast:
            return row_hash
        version = self.connection.info.server_version
        types = {column.name: column.declared for column in self.table.columns}
        fits = [fit for name, old in self.retyped.items() if (fit := _fits(own[name], types[name], old, version))]
        exact = [
            sql.SQL("{}::{}::text is not distinct from {}::text").format(cast[name], _type(types[name]), own[name])
            for name in cast
        ]
        # Only CASE keeps the order: no value is converted that does not fit.
        return sql.SQL("case when {} then case when {} then {} end end").format(
            sql.SQL(" and ").join(fits or [sql.SQL("true")]), sql.SQL(" and ").join(exact), row_hash
        )

    def _execute(self, statement: str, **parts: sql.Composable) -> int:
        return self.connection.execute(self.compose(statement, **parts)).rowcount

    def fetch_number(self, statement: str, **parts: sql.Composable) -> int:
        row = self.connection.execute(self.compose(statement, **parts)).fetchone()
        assert row is not None
        return row[0]


_TEXTS = "(select jsonb_object_agg(e.key, coalesce(e.value, 'null')) from jsonb_each_text(to_jsonb({row}.*)) as e)"
"""The columns of a row as texts. With `.*`, as the alias alone would be a column of that name."""


def retyped_columns(table: TargetTable, published: Sequence[Sequence[str]]) -> Mapping[str, str]:
    """The types at a publication, pairs of name and type, of the columns that have another type in the table."""
    before = {column[0]: column[1] for column in published}
    now = {column.name: column.declared for column in table.columns}
    return {name: before[name] for name, type in now.items() if before.get(name, type) != type}


def _type(declared: str) -> sql.SQL:
    return sql.SQL(declared)  # pyright: ignore[reportArgumentType]  # format_type has quoted it


_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
_INTEGER_BITS = {"smallint": 15, "integer": 31, "bigint": 63}


def _fits(value: sql.Identifier, type: str, old: str, server_version: int) -> sql.Composed | None:
    """The condition under which a value of ``type`` can be converted to ``old`` without an error; None: not known."""
    if type.partition("(")[0] in _NUMBERS:
        if bits := _INTEGER_BITS.get(old):
            return sql.SQL("coalesce({v} >= {low} and {v} <= {high}, true)").format(
                v=value, low=sql.Literal(-(2**bits)), high=sql.Literal(2**bits - 1)
            )
        if old.startswith("numeric("):
            precision, scale = map(int, old[len("numeric(") : -1].split(","))
            fits = "coalesce({v}::numeric = 'NaN' or abs(round({v}::numeric, {scale})) < {limit}, true)"
            limit = sql.Literal(10 ** max(precision - scale, 0))
            return sql.SQL(fits).format(v=value, scale=sql.Literal(scale), limit=limit)
    if server_version < _INPUT_IS_VALID:
        return None
    return sql.SQL("coalesce(pg_input_is_valid({}::text, {}), true)").format(value, sql.Literal(old))


_INPUT_IS_VALID = 160_000
"""The first PostgreSQL with ``pg_input_is_valid``."""


def _differing(image: str, image_hash: str) -> str:
    return (
        f"from {image} as a left join {{table}} as t on {{same}} where {{there}} is null or "
        f"{{row}} is distinct from {image_hash}"
    )


def _sample(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns in which a row differs from the row that the publication replaced, if there is one."""
    before, now = row["before"], row["now"]
    if before is not None and now is not None:
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)] or list(now)
        before, now = ({name: image[name] for name in names if name in image} for image in (before, now))
    return {"key": row["key"], "before": _shown(before), "now": _shown(now)}


def _shown(image: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if image is None else {name: shorten(text, SHOWN_VALUE) for name, text in image.items()}


def may_overlap(
    connection: PgConnection, table: TargetTable, left: Mapping[str, Any], right: Mapping[str, Any]
) -> bool:
    """Return whether two conditions (`where`) can match the same row: not if they require different values of one
    column.

    The database compares the values, as values of the column: 1.0 equals 1, and 'A' may equal 'a'.
    """
    for name in left.keys() & right.keys():
        values = left[name] if isinstance(left[name], list) else [left[name]]
        column = sql.SQL("select {} from {} where false").format(sql.Identifier(name), table.sql)
        # Each row of the union has the type and the collation of the column.
        rows = [sql.SQL("select {}").format(value_literal(value)) for value in values]
        overlap = sql.SQL("select exists (select from ({}) as v where {})").format(
            sql.SQL(" union all ").join([column, *rows]), where_clause({name: right[name]})
        )
        row = connection.execute(overlap).fetchone()
        if row is None or not row[0]:
            return False
    return True


def constraint_conflict(table: TargetTable, error: psycopg.IntegrityError) -> UndoConflict:
    """The conflict with rows of others that occupy the place of restored rows, or that reference deleted ones."""
    return UndoConflict(
        f"the publication to {table.qualified_name} cannot be undone: {database_message(error)}",
        {"table": table.qualified_name, "constraint": error.diag.constraint_name, "detail": error.diag.message_detail},
    )
