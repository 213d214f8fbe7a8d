"""Roles of PostgreSQL that can run code as the role of a connection: they own or may create what its SQL uses.

Superusers and the owner of the database are trusted, because they can always do that; so are the members of that owner
and of a role that is named as trusted, and the role that the connection logs in with. A right is reported: in many
databases another role owns the tables, and before PostgreSQL 15 everybody may create objects in `public`. Two states
are refused: a schema of another role that has the name of the worker's role, because `"$user"` of the search_path
already leads there; and a search_path with a schema before `pg_catalog`, because what is in it replaces functions of
PostgreSQL.

Not looked at is what only runs while other code does: the statements in the body of a trusted function, and what an
operator or a type outside of the search_path leads to if no column, expression or trigger names it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import SQLAlchemyError

from saga_activities.foreign_rights_query import FOREIGN_RIGHTS, SEARCH_PATH
from sagas.text.shortening import and_more, join_names
from sagas.text.sql_names import sql_name

MAX_NAMES = 5
"""Rights that a message names."""

VALID_FOR = 60.0
"""Seconds after which a pool looks again."""

_ORDER = (
    "create",
    "owner",
    "schema",
    "home",
    "trigger",
    "references",
    "foreign key",
    "table",
    "type",
    "operator class",
    "operator",
    "routine",
)

_NAME = re.compile(r'"((?:[^"]|"")*)"|([^\s,"]+)')


log = logging.getLogger("saga.connections")


class ForeignRights(SQLAlchemyError):
    """Other roles can run code as the role of the connection; ``help`` says what to do about the first right. With
    ``refused`` their objects may be in use already, and no connection is given out.
    """

    def __init__(self, message: str, help: str, *, refused: bool) -> None:
        self.message, self.help, self.refused = message, help, refused
        super().__init__(f"{message}; {help}")


@dataclass(frozen=True, slots=True)
class _Right:
    kind: str
    schema: str
    object: str | None
    """The first one of this kind in the schema: a name, or for code the words that SQL takes after its kind. For a
    foreign key ``schema`` is its table."""
    objects: int
    role: str | None
    member_of: str | None

    def takes_the_schema_of(self, user: str) -> bool:
        """True for the owner of a schema that the user searches as its own, not for a member of the user's role."""
        return self.kind == "owner" and self.schema == user and self.member_of is None

    def words(self, missing: Sequence[str]) -> str:
        role = self.role or "public"
        if self.member_of is not None:
            role = f"{role} as a member of {self.member_of}"
        more = and_more(self.objects - 1)
        match self.kind:
            case "owner" | "home":
                return f"{role} owns {self.schema}"
            case "trigger":
                return f"{role} by triggers of {self.schema}.{self.object}{more}"
            case "references":
                return f"{role} by foreign keys to {self.schema}.{self.object}{more}"
            case "foreign key":
                return f"{role} by the foreign key {self.object} of {self.schema}{more}"
            case "table":
                return f"{role} owns {self.schema}.{self.object}{more}"
            case "schema":
                return f"{role} by a new schema {missing[0]}"
            case "create":
                return f"{role} in {self.schema}"
        return f"{role} owns the {self.kind} {self.object}{more}"

    def help(self, user: str) -> str:
        """The advice; trust comes first where the right is usually wanted, and others may work with it."""
        if self.takes_the_schema_of(user):
            return self._remedy(user)
        trust = f"name {sql_name(self.role) if self.role else 'public'} in trusted_roles"
        wanted = self.member_of is not None or self.kind not in ("create", "trigger", "references", "schema")
        return f"{trust}, or {self._remedy(user)}" if wanted else f"{self._remedy(user)}, or {trust}"

    def _remedy(self, user: str) -> str:
        grantee = sql_name(self.role) if self.role else "public"
        if self.member_of is not None:
            return f"revoke {sql_name(self.member_of)} from {grantee}"
        match self.kind:
            case "owner" | "home":
                return f"alter schema {sql_name(self.schema)} owner to {sql_name(user)}"
            case "trigger":
                return f"revoke trigger on {self._table} from {grantee}"
            case "references":
                return f"revoke references on {self._table} from {grantee}"
            case "foreign key":
                return f"alter table {self.schema} drop constraint {sql_name(self.object or '')}"
            case "table":
                return f"alter table {self._table} owner to {sql_name(user)}"
            case "schema":
                return f"revoke create on database {sql_name(self.schema)} from {grantee}"
            case "create":
                return f"revoke create on schema {sql_name(self.schema)} from {grantee}"
            case "type":
                return f"alter type {self.object} owner to {sql_name(user)}"
        return f"drop {self.kind} {self.object}"  # another owner would keep the code

    @property
    def _table(self) -> str:
        return f"{sql_name(self.schema)}.{sql_name(self.object or '')}"


def find_foreign_rights(connection: Any, trusted: Collection[str] = ()) -> ForeignRights | None:
    """Read the rights of other roles, except ``trusted`` ones, over a DBAPI connection, in a transaction of it if it is
    not in autocommit mode.
    """
    cursor = connection.cursor()
    try:
        cursor.execute(SEARCH_PATH)
        path, user, schemas, first = cursor.fetchone()
        if first != "pg_catalog":
            message = (
                f"the search_path has {first} before pg_catalog, so what is there replaces functions of PostgreSQL"
            )
            help = "remove pg_catalog from the search_path: it then comes first"
            return ForeignRights(message, help, refused=True)
        names = _names(path, user)
        missing = [schema for schema in names if schema not in schemas]
        become = "SET" if connection.info.server_version >= 160_000 else "MEMBER"
        values = {"trusted": [*trusted], "names": names, "missing": bool(missing), "become": become}
        cursor.execute(FOREIGN_RIGHTS, values)
        rights = [_Right(*row) for row in cursor.fetchall()]
    finally:
        cursor.close()
    if not rights:
        return None
    # What is dropped first depends on what is dropped later, and a table's owner explains its columns' types.
    rights.sort(
        key=lambda right: (not right.takes_the_schema_of(user), _ORDER.index(right.kind), right.member_of is not None)
    )
    words = join_names([right.words(missing) for right in rights], limit=MAX_NAMES)
    message = f"other roles own or may create objects that SQL of {user} uses ({words}), so they can run code as {user}"
    return ForeignRights(message, rights[0].help(user), refused=rights[0].takes_the_schema_of(user))


class _RightsCheck:
    """Looks for rights of other roles over the connections of one role to one database, at most once in ``VALID_FOR``
    seconds.
    """

    def __init__(self, name: str, trusted: Collection[str]) -> None:
        self._name = name
        self._trusted = tuple(trusted)
        self._valid_until = float("-inf")
        self._logged = ""

    def __call__(self, connection: Any) -> None:
        if time.monotonic() < self._valid_until:
            return
        rights = find_foreign_rights(connection, self._trusted)
        if rights is not None and rights.refused:
            raise ForeignRights(f"the connection {self._name} is refused: {rights.message}", rights.help, refused=True)
        if rights is not None and str(rights) != self._logged:
            self._logged = str(rights)
            log.warning("connection %s: %s", self._name, self._logged)
        self._valid_until = time.monotonic() + VALID_FOR


def refuse_foreign_rights(engine: Engine, name: str, trusted: Collection[str]) -> None:
    """Check the connections that a pool of PostgreSQL hands out for rights of other roles: they are logged, and
    ForeignRights is raised for those that are refused.
    """
    check = _RightsCheck(name, trusted)
    event.listen(engine, "checkout", lambda connection, _record, _proxy: check(connection))


def refuse_foreign_session(connection: Any, name: str, trusted: Collection[str]) -> None:
    """Check a new connection of psycopg that no pool has opened, as :func:`refuse_foreign_rights` does.

    No transaction is left open.
    """
    server = connection.info
    _check_of(name, tuple(trusted), server.host, server.port, server.dbname, server.user)(connection)
    if not connection.autocommit:
        connection.rollback()


@lru_cache(256)
def _check_of(name: str, trusted: tuple[str, ...], *database: object) -> _RightsCheck:
    return _RightsCheck(name, trusted)


def _names(path: str, user: str) -> list[str]:
    """The schemas of a search_path, whether they exist or not."""
    names = [quoted.replace('""', '"') or plain.lower() for quoted, plain in _NAME.findall(path)]
    return [user if name == "$user" else name for name in names]
