"""Iceberg catalogs of the embedded stack can be opened with the properties that `dev status` prints."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from sagas.settings import load_settings
from tests.integration.dev.conftest import Project

ROWS = pa.table({"id": [1, 2]})


@pytest.mark.slow
def test_a_catalog_without_uri_lives_on_the_embedded_postgresql(project: Project) -> None:
    with (project.root / "saga.toml").open("a", encoding="utf-8") as file:
        file.write('[catalogs.lake]\ntype = "sql"\n[catalogs.far]\ntype = "rest"\nuri = "http://127.0.0.1:1"\n')
    assert project.status()["catalogs"]["lake"] == {"type": "sql"}
    reported = project.up("--only", "postgres")["catalogs"]
    assert reported["far"] == {"type": "rest", "uri": "http://127.0.0.1:1"}
    assert reported["lake"]["uri"].startswith("postgresql+psycopg://")
    assert reported["lake"]["warehouse"] == f"file://{project.root}/.saga/warehouse/lake"
    assert dict(load_settings(project.root, env={}).catalogs["lake"]) == reported["lake"]

    # Its tables are there already: a reader needs no right to create any.
    catalog = load_catalog("lake", **{**reported["lake"], "init_catalog_tables": "false"})
    catalog.create_namespace("sales")
    catalog.create_table("sales.facts", ROWS.schema).append(ROWS)
    assert (project.root / ".saga" / "warehouse" / "lake" / "sales" / "facts" / "metadata").is_dir()
    catalog.close()

    project.saga("dev", "down")
    assert project.status()["catalogs"]["lake"] == {"type": "sql"}
    again = load_catalog("lake", **project.up("--only", "postgres")["catalogs"]["lake"])
    assert again.load_table("sales.facts").scan().to_arrow() == ROWS
    again.close()
    assert "catalog" in project.saga("dev", "status")

    (project.root / ".saga" / "spark" / "stage" / "key" / "g1").mkdir(parents=True)
    project.saga("dev", "down", "--wipe")
    assert not (project.root / ".saga" / "warehouse").exists()
    assert not (project.root / ".saga" / "spark" / "stage").exists()
    empty = load_catalog("lake", **project.up("--only", "postgres")["catalogs"]["lake"])
    assert empty.list_namespaces() == []
    empty.close()


def test_a_malformed_catalog_gives_a_one_line_error(project: Project) -> None:
    with (project.root / "saga.toml").open("a", encoding="utf-8") as file:
        file.write('[catalogs]\nlake = "sql"\n')
    done = project.call("dev", "up")
    assert done.returncode == 2
    assert "catalogs.lake must be a table: [catalogs.lake]" in done.stderr
