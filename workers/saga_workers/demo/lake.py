"""The lake as its readers see it, through pyiceberg and nothing of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from sagas.settings import Settings

NAME = "lake"
NAMESPACE = "sales"
TABLES = ("daily_facts", "daily_totals")


@dataclass(frozen=True, slots=True)
class Lake:
    """``rows`` by table; ``writers``: the ids of the sagas that have ever published something, by table; ``moved_by``:
    the transaction of the catalog's database that moved each table last."""

    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    writers: Mapping[str, frozenset[str]]
    moved_by: Mapping[str, str]


def read(settings: Settings) -> Lake:
    """What both tables hold now, and what their histories tell."""
    tables = {name: _table(_catalog(settings), name) for name in TABLES}
    return Lake(
        rows={name: table.scan().to_arrow().to_pylist() if table else [] for name, table in tables.items()},
        writers={name: _writers(table) if table else frozenset() for name, table in tables.items()},
        moved_by=_moved_by(settings.catalogs[NAME]["uri"]),
    )


def clear(settings: Settings) -> None:
    """Delete both tables with their histories: the shop opens anew, and the days of an earlier demo are gone."""
    catalog = _catalog(settings)
    for name in TABLES:
        if _table(catalog, name) is not None:
            catalog.purge_table((NAMESPACE, name))


def staged_files(stage: str, key: str) -> list[str]:
    """What the stage area has of one output, by its publish key."""
    folder = Path(stage.removeprefix("file://")) / key
    return [str(path.relative_to(folder.parent)) for path in sorted(folder.rglob("*")) if path.is_file()]


def _catalog(settings: Settings) -> Catalog:
    return load_catalog(NAME, **settings.catalogs[NAME])


def _table(catalog: Catalog, name: str) -> Table | None:
    try:
        return catalog.load_table((NAMESPACE, name))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None  # nothing was ever published


def _writers(table: Table) -> frozenset[str]:
    found = (
        snapshot.summary.additional_properties.get("saga.id") for snapshot in table.snapshots() if snapshot.summary
    )
    return frozenset(saga_id for saga_id in found if saga_id)


def _moved_by(uri: str) -> dict[str, str]:
    """PostgreSQL keeps with every row which transaction wrote it: `xmin`."""
    with psycopg.connect(uri.replace("postgresql+psycopg://", "postgresql://")) as connection:
        rows = connection.execute(
            "select table_name, xmin::text from iceberg_tables where table_namespace = %s", (NAMESPACE,)
        ).fetchall()
    return dict(rows)
