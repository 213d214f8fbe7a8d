"""Change a table so that the change can be taken back exactly.

``saga_before_<key>`` holds the rows that were deleted or changed, whole. ``saga_after_<key>`` holds for each row that
was written its key and a hash of all its columns (a table without a primary key: the hash alone, once per row). The
undo compares the hashes first, so it touches nothing that others have changed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from saga_spark.job import Output
from saga_spark.keys import Target
from saga_spark.sinks.postgresql_table import Connection, Table, condition, identifiers, same_key
from saga_spark.sinks.sink import NotOurs

HASH = "saga_row_hash"
SAMPLES = 20
"""Rows that a report shows."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one table. ``key`` tells rows apart: the merge's, else the primary key; () where there is none."""

    connection: Connection
    target: Target
    table: Table
    mode: str
    key: tuple[str, ...]

    @property
    def before(self) -> sql.Identifier:
        return sql.Identifier(f"saga_before_{self.target.name}")

    @property
    def after(self) -> sql.Identifier:
        return sql.Identifier(f"saga_after_{self.target.name}")

    def apply(self, stage: str, columns: Sequence[str], output: Output) -> dict[str, int]:
        """Write the stage table's rows; how many were inserted, deleted and updated. Hold the table's lock."""
        self._run("drop table if exists {before}, {after}")
        self._run("create table {before} as select {all} from {table} with no data")
        self._run("create table {after} as select {keys} null::uuid as {hash} from {table} with no data")
        deleted = 0
        if self.mode in ("overwrite", "overwrite_where"):
            where = condition(output.where if self.mode == "overwrite_where" else {})
            deleted = self._run(
                "with gone as (delete from {table} where {where} returning {all}) "
                "insert into {before} select {all} from gone",
                where=where,
            )
        updated, conflict = 0, sql.SQL("")
        if self.mode == "merge":
            conflict, updated = self._merging(sql.Identifier(stage), columns)
        written = self._run(
            "with put as (insert into {table} as t ({columns}) select {columns} from {stage} {conflict} "
            "returning {own}) insert into {after} select {keys} {row} from put as t",
            columns=identifiers(columns),
            stage=sql.Identifier(stage),
            conflict=conflict,
        )
        return {"inserted": written - updated, "deleted": deleted, "updated": updated}

    def revert(self) -> dict[str, int]:
        """Take the change back where every row still is what it wrote. Hold the table's lock.

        Raises NotOurs: rows were changed or deleted since, or something stands where a row was. The caller rolls back.
        """
        if not self._exists():
            raise NotOurs(f"what the undo of {self.table.label} needs is no longer kept", {"table": self.table.label})
        self._must_hold("{after}", "a.{hash}", "were changed or deleted by others since")
        updated = self._put_back_updated() if self.mode == "merge" else 0
        deleted = self._delete_written()
        restored = 0
        if self.mode != "merge":
            writable = identifiers([one.name for one in self.table.columns if not one.generated])
            restored = self._run(
                "insert into {table} ({columns}) overriding system value select {columns} from {before}",
                columns=writable,
            )
        was = "md5(row({was})::text)::uuid"
        self._must_hold("{before}", was, "were changed by a trigger when they were brought back")
        return {"deleted": deleted, "restored": restored, "updated": updated}

    def forget(self) -> None:
        """Drop the images: the change can not be taken back any more."""
        self._run("drop table if exists {before}, {after}")

    def _merging(self, stage: sql.Identifier, columns: Sequence[str]) -> tuple[sql.Composable, int]:
        key = identifiers(self.key)
        changed = [name for name in columns if name not in self.key]
        if not changed:
            return sql.SQL("on conflict ({}) do nothing").format(key), 0
        updated = self._run(
            "insert into {before} select {own} from {table} as t join {stage} as s on {same}",
            stage=stage,
            same=same_key("t", "s", self.key),
        )
        sets = sql.SQL(", ").join(
            sql.SQL("{} = excluded.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in changed
        )
        return sql.SQL("on conflict ({}) do update set {}").format(key, sets), updated

    def _must_hold(self, image: str, image_hash: str, problem: str) -> None:
        """Every row of an image is in the table as it is there. Raises NotOurs, with the rows that are not."""
        if not self.key:
            count = self._one(
                "select coalesce(sum(a.n - least(a.n, coalesce(t.n, 0))), 0)::bigint from ("
                f"select {image_hash} as {{hash}}, count(*) as n from {image} as a group by 1) as a left join ("
                "select {row} as {hash}, count(*) as n from {table} as t group by 1) as t using ({hash})"
            )
            if count:
                raise NotOurs(
                    f"{count} rows of {self.table.label} {problem}", {"table": self.table.label, "rows": count}
                )
            return
        same, there = same_key("t", "a", self.key), sql.Identifier("t", self.key[0])
        differs = f"from {image} as a left join {{table}} as t on {{same}} where {{there}} is null or "
        differs += f"{{row}} <> {image_hash}"
        count = self._one("select count(*) " + differs, same=same, there=there)
        if not count:
            return
        wanted = "select jsonb_build_object({pairs}) as key, case when {there} is not null then to_jsonb(t) end as now "
        pairs = sql.SQL(", ").join(
            sql.SQL("{}, {}").format(sql.Literal(name), sql.Identifier("a", name)) for name in self.key
        )
        samples = self._sql(wanted + differs + f" limit {SAMPLES}", same=same, there=there, pairs=pairs)
        with self.connection.cursor(row_factory=dict_row) as cursor:
            report = {"table": self.table.label, "rows": count, "samples": cursor.execute(samples).fetchall()}
        raise NotOurs(f"{count} rows of {self.table.label} {problem}", report)

    def _put_back_updated(self) -> int:
        fixed = [one.name for one in self.table.columns if one.generated or one.always]
        columns = [name for name in self.table.names if name not in fixed and name not in self.key]
        if not columns:
            return 0
        sets = sql.SQL(", ").join(
            sql.SQL("{} = b.{}").format(sql.Identifier(name), sql.Identifier(name)) for name in columns
        )
        return self._run(
            "update {table} as t set {sets} from {before} as b where {same}",
            sets=sets,
            same=same_key("t", "b", self.key),
        )

    def _delete_written(self) -> int:
        if self.key:
            return self._run(
                "delete from {table} as t using {after} as a where {same} "
                "and not ({merge} and exists (select from {before} as b where {still}))",
                merge=sql.SQL("true" if self.mode == "merge" else "false"),
                same=same_key("t", "a", self.key),
                still=same_key("b", "a", self.key),
            )
        # Rows without a key are values: of equal ones it does not matter which are deleted, only how many.
        return self._run(
            "delete from {table} as t using ("
            "  select t.tableoid as part, t.ctid as place, {row} as {hash},"
            "         row_number() over (partition by {row}) as n from {table} as t) as found, "
            "  (select {hash}, count(*) as n from {after} group by {hash}) as a "
            "where t.tableoid = found.part and t.ctid = found.place and found.{hash} = a.{hash} and found.n <= a.n"
        )

    def _exists(self) -> bool:
        name = self.after.as_string(self.connection)
        return self._one("select count(to_regclass({name}))", name=sql.Literal(name)) == 1

    def _sql(self, statement: str, **parts: sql.Composable) -> sql.Composed:
        own = identifiers(self.table.names, "t")
        keys = sql.SQL("{}, ").format(identifiers(self.key)) if self.key else sql.SQL("")
        return sql.SQL(statement).format(  # pyright: ignore[reportArgumentType]
            **{
                "table": self.table.sql,
                "before": self.before,
                "after": self.after,
                "all": identifiers(self.table.names),
                "own": own,
                "was": identifiers(self.table.names, "a"),
                "keys": keys,
                "row": sql.SQL("md5(row({})::text)::uuid").format(own),
                "hash": sql.Identifier(HASH),
                **parts,
            }
        )

    def _run(self, statement: str, **parts: sql.Composable) -> int:
        return self.connection.execute(self._sql(statement, **parts)).rowcount

    def _one(self, statement: str, **parts: sql.Composable) -> int:
        row = self.connection.execute(self._sql(statement, **parts)).fetchone()
        assert row is not None
        return row[0]


def overlap(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """May two conditions (`where`) hold for the same row? Not if they want different values of one column."""

    def values(value: Any) -> set[str]:
        return {str(one) for one in (value if isinstance(value, list) else [value])}

    return all(values(left[name]) & values(right[name]) for name in left.keys() & right.keys())


def refused_undo(table: Table, error: psycopg.IntegrityError) -> NotOurs:
    """Others have rows that stand where ours were, or that refer to them."""
    said = error.diag.message_primary or str(error)
    return NotOurs(
        f"{table.label} cannot be brought back to what it was: {said}",
        {"table": table.label, "constraint": error.diag.constraint_name, "detail": error.diag.message_detail},
    )
