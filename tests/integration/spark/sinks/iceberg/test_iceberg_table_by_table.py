"""A REST catalog that offers the transaction over several tables, and commits them one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_spark.output_records import OutputRow
from saga_spark.reconcile.output_checks import collect_evidence, partial_publications
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import Publication, validate_together
from sagas.errors import InfrastructureError, UsageError
from tests.helpers.database_servers import DatabaseServer
from tests.integration.spark.sinks.iceberg.iceberg_environment import Lake, open_lake, some


def pair(lake: Lake) -> list[Publication]:
    names = ("sales.facts", "sales.totals")
    return [lake.staged(some(1), name, name=name.partition(".")[2], mode="overwrite", saga="s1") for name in names]


def row(publication: Publication) -> OutputRow:
    output = publication.output
    spec = {"table": output.destination, "mode": output.mode}
    return OutputRow(publication.tag.target, 1, "STAGED", "day", output.destination, together=True, spec=spec)


def test_reconcile_finds_a_part_of_a_joint_publication(server: DatabaseServer, tmp_path: Path) -> None:
    with open_lake("rest", server, tmp_path, fails_after=[1]) as lake:
        ours = pair(lake)
        rows = [row(publication) for publication in ours]

        def findings() -> list[tuple[str, str | None, str | None, str]]:
            evidence = [collect_evidence(entry, lake.settings) for entry in rows]
            partly_published = partial_publications(evidence, {"s1": "PARKED"}, lake.settings)
            return [(entry.kind, entry.saga_id, entry.place, entry.details["missing"]) for entry in partly_published]

        assert findings() == []
        with pytest.raises(InfrastructureError, match=r"lake\.sales\.facts, lake\.sales\.totals"):
            lake.publish(*ours, together=True)
        assert (lake.ids("sales.facts"), lake.exists("sales.totals")) == ([1], False)
        assert findings() == [("published_partly", "s1", "lake.sales.facts", "lake.sales.totals")]
        assert [done.adopted for done in lake.publish(*ours, together=True)] == [True, False]
        assert (lake.ids("sales.facts"), lake.ids("sales.totals")) == ([1], [1])
        assert findings() == []


@pytest.mark.parametrize("declared", [None, False, "yes"])
def test_an_undeclared_rest_catalog_is_refused(server: DatabaseServer, tmp_path: Path, declared: object) -> None:
    with open_lake("rest", server, tmp_path) as lake:
        outputs = [publication.output for publication in pair(lake)]
        validate_together(outputs, lake.settings)
        catalog = {**lake.settings.catalogs["lake"], "multi_table_commit": declared}
        if declared is None:
            del catalog["multi_table_commit"]
        undeclared = SparkSettings(root=tmp_path, stage=lake.settings.stage, catalogs={"lake": catalog})
        message = r"the catalog lake may commit table by table; set multi_table_commit = true in \[catalogs\.lake\]"
        with pytest.raises(UsageError, match=message):
            validate_together(outputs, undeclared)
