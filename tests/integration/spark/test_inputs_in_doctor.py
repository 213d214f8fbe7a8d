"""`saga doctor` looks for the files and the tables of catalogs that inputs name, without Spark."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from saga_workers.doctor.spark_input_checks import check_spark_inputs
from sagas.project import Project
from sagas.settings import load_settings

INPUTS = {
    "files": "{parquet: data/there}",
    "some": "{parquet: 'data/*/a.parquet'}",
    "computed": "{parquet: 'data/${{ saga.id }}', columns: [nowhere]}",
    "nowhere": "{parquet: data/nothere.parquet}",
    "later": "{parquet: out}",
    "seed": "{table: lake.seed.rows, columns: [n, label], where: {n: [1, null, '${{ saga.id }}'], label: x}}",
    "other": "{parquet: data/there, columns: [n, M], where: {day: 2026-05-01, n: monday, k: x}}",
    "cased": "{table: lake.seed.rows, columns: [N], where: {n: x, label: 1}}",
    "as_of": "{table: lake.seed.rows, as_of: before, columns: [old]}",
    "wrong": "{table: lake.seed.rows, columns: [nonono], where: {lable: x}}",
    "gone": "{table: lake.seed.nothere}",
    "facts": "{table: lake.sales.facts}",
    "far": "{table: far.sales.facts}",
    "bucket": "{parquet: 's3://nobucket/x?region=eu&scheme=http&endpoint_override=127.0.0.1:1'}",
}


def _project(folder: Path) -> Project:
    inputs = "".join(f"        {name}: {source}\n" for name, source in INPUTS.items())
    (folder / "load.saga.yaml").write_text(
        "saga: load\nsteps:\n  - id: first\n    uses: spark\n    with: {sql: select 1 as a, output: {parquet: out}}\n"
        "  - id: second\n    uses: spark\n    with:\n"
        f"      sql: select 1 as a\n      output: {{table: lake.sales.facts}}\n      inputs:\n{inputs}"
    )
    (folder / "saga.toml").write_text(
        f'definitions = ["."]\n[connections.shop]\nurl = "sqlite:///shop.db"\n[spark]\nledger = "shop"\n'
        f'[catalogs.lake]\ntype = "sql"\nuri = "sqlite:///{folder}/lake.db"\nwarehouse = "{folder.as_uri()}/lake"\n'
        '[catalogs.far]\ntype = "rest"\nuri = "http://127.0.0.1:1"\n'
    )
    project = Project(load_settings(config=str(folder / "saga.toml")))
    assert [each for each in project.diagnostics if each.severity == "error"] == []
    return project


def _place(folder: Path, name: str, word: str) -> str:
    lines = (folder / "load.saga.yaml").read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith(f"        {name}: "))
    return f"{at + 1}:{lines[at].index(word, lines[at].index('{')) + 1} load/second"


async def test_what_an_input_names_and_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "data" / "there" / "day=2026-05-01").mkdir(parents=True)
    pq.write_table(pa.table({"n": [1]}), tmp_path / "data" / "there" / "a.parquet")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "data" / "there" / "day=2026-05-01" / "a.parquet")
    catalog = load_catalog(
        "lake", type="sql", uri=f"sqlite:///{tmp_path}/lake.db", warehouse=f"{tmp_path.as_uri()}/lake"
    )
    catalog.create_namespace("seed")
    catalog.create_table("seed.rows", pa.schema({"n": pa.int64(), "label": pa.string()}))
    good, *problems = await check_spark_inputs(_project(tmp_path))
    assert good.message == "4 of 13 files and tables are there"
    file, place = f"{tmp_path}/load.saga.yaml", partial(_place, tmp_path)
    answers = {problem.message.removeprefix(f"{file}:"): (problem.ok, problem.help) for problem in problems}
    unreachable = next(message for message in answers if "far" in message)
    assert unreachable.startswith(
        f"{place('far', 'far.')}: not checked because the catalog of far.sales.facts is not avail"
    )
    assert answers.pop(unreachable)[0] is None
    bucket = next(message for message in answers if "nobucket" in message)
    assert bucket.startswith(f"{place('bucket', chr(39))}: not checked because When getting information for key 'x'")
    assert answers.pop(bucket) == (None, "make the input readable from here, or correct its name")
    columns = "correct the name; the columns are n, label"
    of_files = "correct the name; the columns are n, day"
    assert answers == {
        f"{place('nowhere', 'data')}: no Parquet files are at data/nothere.parquet yet": (
            None,
            "write them before the step runs, or correct the path",
        ),
        f"{place('later', 'out')}: no Parquet files are at out yet": (
            None,
            "load/first writes it; run that saga before",
        ),
        f"{place('other', 'M]')}: the Parquet files at data/there have no column M": (False, of_files),
        f"{place('other', 'k:')}: the Parquet files at data/there have no column k": (False, of_files),
        f"{place('other', 'monday')}: `where`: the column n is bigint and cannot be monday": (
            False,
            "correct the value",
        ),
        f"{place('cased', 'N]')}: the table lake.seed.rows has no column N": (False, columns),
        f"{place('cased', 'x,')}: `where`: the column n is bigint and cannot be x": (False, "correct the value"),
        f"{place('cased', '1}')}: `where`: the column label is string and cannot be 1": (False, "quote it"),
        f"{place('wrong', 'nonono')}: the table lake.seed.rows has no column nonono": (False, columns),
        f"{place('wrong', 'lable')}: the table lake.seed.rows has no column lable": (False, columns),
        f"{place('gone', 'lake')}: the table lake.seed.nothere does not exist": (
            False,
            "create the table, or correct its name",
        ),
        f"{place('facts', 'lake')}: the table lake.sales.facts does not exist yet": (
            None,
            "load/second writes it; run that saga before",
        ),
    }


@pytest.mark.slow
async def test_a_catalog_without_tables_is_not_changed(tmp_path: Path) -> None:
    results = await check_spark_inputs(_project(tmp_path))
    assert not any(result.ok for result in results)
    assert any("lake.seed.nothere does not exist" in result.message for result in results)
    assert (tmp_path / "lake.db").stat().st_size == 0 if (tmp_path / "lake.db").exists() else True
