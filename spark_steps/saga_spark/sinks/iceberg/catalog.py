"""Catalogs and the names of tables."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchTableError,
    NotInstalledError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from requests import RequestException
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from saga_activities.foreign_rights import refuse_foreign_rights
from saga_spark.job_errors import first_line
from saga_spark.settings import SparkSettings
from saga_spark.sinks.iceberg.pyiceberg_internals import (
    has_multi_table_commit,
)
from sagas.builtins.spark import MULTI_TABLE_COMMIT
from sagas.errors import InfrastructureError, UsageError
from sagas.text.exact_json import canonical_json, decode_json

MAX_NAME_BYTES = 255
"""The longest name that a column of a SQL catalog and a folder hold."""


@dataclass(frozen=True, slots=True)
class TableName:
    """The table of an output: ``catalog.namespace.table``; a namespace may have several levels."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    @staticmethod
    def parse(text: str) -> TableName:
        """Raises UsageError if a part is missing."""
        parts = text.split(".")
        if len(parts) < 3 or not all(parts):
            raise UsageError(f"the table {text} must be named as catalog.namespace.table")
        for part in (".".join(parts[1:-1]), parts[-1]):
            if len(part.encode()) > MAX_NAME_BYTES:
                raise UsageError(
                    f"the name {part} of a table or namespace has {len(part.encode())} bytes, and catalogs and folders "
                    f"hold {MAX_NAME_BYTES}; shorten it"
                )
            if not part.isprintable() or "/" in part:
                raise UsageError(f"the table {text} has a character in its name that no folder can have; rename it")
        return TableName(parts[0], tuple(parts[1:-1]), parts[-1])

    @property
    def identifier(self) -> tuple[str, ...]:
        return (*self.namespace, self.table)

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.identifier))


def open_catalog(settings: SparkSettings, name: str) -> Catalog:
    """The catalog, opened once per process. Raises UsageError if it is missing or its settings are wrong."""
    return _load_catalog(settings, name)


def describe_catalog(settings: SparkSettings, name: str) -> str:
    """A readable summary of a catalog, which is not changed. Raises UsageError, InfrastructureError."""
    with translate_errors(f"[catalogs.{name}]"):
        catalog = _unchanged_catalog(settings, name)
        if catalog is None:
            return "it responds; its tables are created with the first publication"
        return f"it responds; namespaces: {len(catalog.list_namespaces())}"


def read_schema(settings: SparkSettings, table: TableName) -> Schema | None:
    """The schema of a table; None if it does not exist. Raises UsageError, InfrastructureError."""
    with translate_errors(str(table)):
        catalog = _unchanged_catalog(settings, table.catalog)
        opened = None if catalog is None else load_table(catalog, table)
    return None if opened is None else opened.schema()


def _unchanged_catalog(settings: SparkSettings, name: str) -> Catalog | None:
    """The catalog for reading; None if it has no tables of its own yet, which are not created here."""
    catalog = _load_catalog(settings, name, init_catalog_tables="false")
    if isinstance(catalog, SqlCatalog) and not sa.inspect(catalog.engine).has_table(IcebergTables.__tablename__):
        return None
    return catalog


def _of_pyiceberg(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name != MULTI_TABLE_COMMIT}


def _load_catalog(settings: SparkSettings, name: str, **own: str) -> Catalog:
    properties = {**_of_pyiceberg(settings.catalog(name)), **own}
    return _loaded_catalog(name, canonical_json(properties), settings.roles_trusted_at(str(properties.get("uri"))))


@functools.lru_cache(maxsize=32)
def _loaded_catalog(name: str, text: str, trusted_roles: tuple[str, ...]) -> Catalog:
    properties = decode_json(text)
    try:
        uri = sa.make_url(properties["uri"]) if properties.get("type", "sql") == "sql" else None
        is_checked = uri is not None and uri.get_backend_name() == "postgresql"
        if uri is not None and is_checked:
            before = sa.create_engine(uri, poolclass=sa.NullPool)
            refuse_foreign_rights(before, f"of the catalog {name}", trusted_roles)
            before.connect().close()  # pyiceberg creates its tables while it opens its own pool
        # After a restart of the database, the first statement must not fail.
        catalog = load_catalog(name, **{"pool_pre_ping": "true", **properties})
        if is_checked and isinstance(catalog, SqlCatalog):
            refuse_foreign_rights(catalog.engine, f"of the catalog {name}", trusted_roles)
        return catalog
    except (ValueError, ArgumentError, NoSuchModuleError, ImportError, NotInstalledError) as error:
        raise UsageError(f"catalogs.{name} cannot be used: {first_line(error)}") from error


@contextmanager
def translate_errors(subject: str) -> Iterator[None]:
    """An unreachable catalog or disk becomes a retryable infrastructure error with one message; a refusal becomes a
    UsageError about the settings."""
    try:
        yield
    except (UnauthorizedError, ForbiddenError, BadRequestError, OAuthError) as error:
        raise UsageError(f"the catalog of {subject} refuses the request: {first_line(error)}") from error
    except DBAPIError as error:
        raise InfrastructureError(
            f"the catalog of {subject} is not available: {first_line(error.orig or error)}"
        ) from error
    except (SQLAlchemyError, RESTError, RequestException, CommitFailedException) as error:
        raise InfrastructureError(f"the catalog of {subject} is not available: {first_line(error)}") from error
    except OSError as error:
        raise InfrastructureError(f"{error.filename or subject}: {error.strerror or first_line(error)}") from error


def load_table(catalog: Catalog, name: TableName) -> Table | None:
    try:
        return catalog.load_table(name.identifier)
    except NoSuchTableError:
        return None


def can_commit_together(catalog: Catalog) -> bool:
    """Return whether several tables can be committed atomically."""
    if not isinstance(catalog, RestCatalog):
        return isinstance(catalog, SqlCatalog)
    return has_multi_table_commit(catalog)


def no_common_commit(catalog: str) -> UsageError:
    """The error for a catalog without transactions over several tables."""
    return UsageError(f"the catalog {catalog} cannot commit several tables together; remove `publish: together`")


def planned_location(catalog: Catalog, name: TableName) -> str | None:
    """The future location of a table that does not exist yet; None if only the catalog can decide it at creation."""
    if isinstance(catalog, RestCatalog):
        return None
    properties: Mapping[str, str] = {}
    if catalog.namespace_exists(name.namespace):
        properties = catalog.load_namespace_properties(name.namespace)
    if "location" in properties:
        return f"{properties['location'].rstrip('/')}/{name.table}"
    warehouse = catalog.properties.get("warehouse")
    if not warehouse:
        raise UsageError(f"catalogs.{name.catalog} needs `warehouse`, because a new table has no other location")
    return "/".join((warehouse.rstrip("/"), ".".join(name.namespace), name.table))
