"""Prepares one statement on PostgreSQL, as often as its types need it: nothing is executed, and nothing stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from psycopg import generators

from saga_activities.guard.sqlstates import healing_of, sqlstate_of
from saga_workers.doctor.parameter_types import RefusedAttempt
from sagas.sql_text.parsed import ParsedSql
from sagas.sql_text.placeholders import placeholder_names

_NAME = "saga_doctor"

_BASE_TYPES = f"""
with recursive base(at, type) as (
  select at, type from pg_prepared_statements, pg_catalog.unnest(parameter_types) with ordinality as parameter(type, at)
  where name = '{_NAME}'
  union all
  select at, typbasetype::regtype from base join pg_type on pg_type.oid = base.type::oid where typtype = 'd'
)
select base.type::text from base join pg_type on pg_type.oid = base.type::oid where typtype <> 'd' order by at
"""  # noqa: S608 - a constant
"""The types of the parameters, for a domain the type below it: NULL is a value of each, and not of each domain."""


class PostgresqlAttempts:
    """Attempts to prepare ``sent`` on a connection of psycopg, each in a transaction that only reads.

    It is ``parsed``, the author's statement, in which places of a parameter may have become parameters of their own.
    """

    def __init__(self, raw: Any, parsed: ParsedSql, sent: ParsedSql) -> None:
        self._raw = raw
        self._parameters = sent.parameters
        authors = dict(zip(placeholder_names(sent), placeholder_names(parsed), strict=True))
        self._names = tuple(authors[name] for name in sent.parameters)
        rendered = sent.render("numeric_dollar")
        starts = [start for _, start in parsed.render("numeric_dollar").origins]
        origins = tuple((at, start) for (at, _), start in zip(rendered.origins, starts, strict=True))
        self._rendered = replace(rendered, origins=origins)
        self.columns: Sequence[str] = ()
        """The names of the columns of its result, as far as it has been prepared."""

    async def prepare(self, types: Mapping[str, str]) -> RefusedAttempt | None:
        """The database's error, if it cannot parse the statement with these types of parameters."""
        return await self._attempt(self._declared(types), explain=False)

    async def explain(self, types: Mapping[str, str]) -> RefusedAttempt | None:
        """The error, if it cannot parse and plan the statement; the plan checks the rights as well."""
        return await self._attempt(self._declared(types), explain=True)

    def _refused(self, error: Any) -> RefusedAttempt:
        position = int(error.diag.statement_position or 0) - 1 - len(self._beginning)
        return RefusedAttempt(error, self._rendered.origin_of(position) if position >= 0 else None, self._names)

    def _declared(self, types: Mapping[str, str]) -> list[str]:
        return [types.get(name, "unknown") for name in self._parameters]

    async def _attempt(self, types: Sequence[str], *, explain: bool) -> RefusedAttempt | None:
        """Raises OperationalError if the database is busy."""
        import psycopg

        raw = self._raw
        await raw.execute("BEGIN READ ONLY")
        try:
            await raw.execute("SET LOCAL lock_timeout = '2s'")
            await raw.execute("SET LOCAL statement_timeout = '5s'")
            await raw.execute("SET LOCAL plan_cache_mode = force_generic_plan")
            await self._prepare(types)
            if explain:
                bases = [base for (base,) in await (await raw.execute(_BASE_TYPES)).fetchall()]
                await raw.execute(f"DEALLOCATE {_NAME}")
                await self._prepare(bases)
                values = ", ".join(["NULL"] * len(bases))
                await raw.execute(f"EXPLAIN EXECUTE {_NAME}" + (f"({values})" if values else ""))
        except psycopg.OperationalError as error:
            if healing_of(sqlstate_of(error) or "") == "never":  # also for a view that cannot be updated
                return self._refused(error)
            raise
        except psycopg.Error as error:
            return self._refused(error)
        finally:
            await raw.execute("ROLLBACK")
            await raw.execute("DEALLOCATE ALL")
        return None

    async def _prepare(self, types: Sequence[str]) -> None:
        declared = f" ({', '.join(types)})" if types else ""
        self._beginning = f"PREPARE {_NAME}{declared} AS "
        await self._raw.execute(self._beginning + self._rendered.text)
        self._raw.pgconn.send_describe_prepared(_NAME.encode())
        (described,) = await self._raw.wait(generators.execute(self._raw.pgconn))
        names = (described.fname(at) for at in range(described.nfields))
        self.columns = [name.decode() for name in names if name is not None]
