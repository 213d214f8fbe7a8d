"""Looks for the files and the tables of catalogs that the inputs of Spark steps name. Spark is not started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from saga_spark.settings import SparkSettings, spark_settings
from saga_workers.doctor.doctor_result import DoctorResult, timed_check
from sagas.definition.checks.spark_inputs import WrittenInput, literal, spark_inputs, spark_outputs
from sagas.definition.diagnostics import Positioned
from sagas.definition.parser.draft import SagaDraft
from sagas.errors import SagaError
from sagas.settings.project import Project
from sagas.text.shortening import join_names

CHECK = "spark inputs"
_OTHER_SOURCES = ("connection", "step", "topic")


@dataclass(frozen=True, slots=True)
class _CheckedInput:
    """An input of files (``parquet``) or of a table of a catalog, with its place."""

    file: str
    owner: str
    source: WrittenInput
    is_table: bool

    @property
    def name(self) -> str:
        return self.source.text("table" if self.is_table else "parquet") or ""

    def at(self, position: Positioned | None = None) -> str:
        position = position or self.source.fields["table" if self.is_table else "parquet"]
        return f"{self.file}:{position.line}:{position.column} {self.owner}"


async def check_spark_inputs(project: Project) -> list[DoctorResult]:
    """Report each input that is not there. The packages of Spark steps must be installed."""
    try:
        drafts, spark = project.drafts, spark_settings(project.settings)
    except SagaError:
        return []  # reported with the definitions and the settings
    sources = [source for draft in drafts for source in _sources(draft)]
    writers = _writers(drafts)
    checked = [await _check(source, spark, writers.get(source.name)) for source in sources]
    good = sum(not results for results in checked)
    there = DoctorResult(CHECK, True, f"{good} of {len(sources)} files and tables are there")
    return [*([there] if good else ()), *(result for results in checked for result in results)]


def _sources(draft: SagaDraft) -> Iterator[_CheckedInput]:
    for source in spark_inputs(draft):
        owner = f"{draft.definition.saga}/{source.step}"
        if source.text("parquet") is not None:
            yield _CheckedInput(draft.file, owner, source, is_table=False)
        elif source.text("table") is not None and not any(field in source.fields for field in _OTHER_SOURCES):
            yield _CheckedInput(draft.file, owner, source, is_table=True)


def _writers(drafts: Sequence[SagaDraft]) -> dict[str, str]:
    """The step that writes each path and each table of a catalog."""
    writers: dict[str, str] = {}
    for draft in drafts:
        for step, output in spark_outputs(draft):
            name = literal(output.get("parquet" if "parquet" in output else "table"))
            if name is not None and "connection" not in output:
                writers.setdefault(name, f"{draft.definition.saga}/{step}")
    return writers


async def _check(source: _CheckedInput, spark: SparkSettings, writer: str | None) -> list[DoctorResult]:
    if source.is_table:
        return await _check_table(source, spark, writer)
    exists: list[bool] = []

    def look() -> str:
        from saga_spark.sinks.parquet.parquet_pointer import CURRENT
        from saga_spark.storage import file_size, list_parquet_files, project_location

        location = project_location(source.name, spark.root)
        is_output = file_size(f"{location.rstrip('/')}/{CURRENT}") is not None
        exists.append(is_output or bool(list_parquet_files(location)))
        return ""

    result = await _looked(source, look)
    if result is None and not exists[0]:
        why = f"{source.at()}: no Parquet files are at {source.name} yet"
        return [
            DoctorResult(CHECK, None, why, _expected(writer) or "write them before the step runs, or correct the path")
        ]
    return [] if result is None else [result]


async def _check_table(source: _CheckedInput, spark: SparkSettings, writer: str | None) -> list[DoctorResult]:
    tables: list[list[str] | None] = []

    def look() -> str:
        from saga_spark.sinks.iceberg.catalog import TableName, column_names

        tables.append(column_names(spark, TableName.parse(source.name)))
        return ""

    if (result := await _looked(source, look)) is not None:
        return [result]
    (columns,) = tables
    if columns is None:
        why = f"{source.at()}: the table {source.name} does not exist"
        if writer is not None:
            return [DoctorResult(CHECK, None, f"{why} yet", _expected(writer))]
        return [DoctorResult(CHECK, False, why, "create the table, or correct its name")]
    known = {column.lower() for column in columns}
    return [
        DoctorResult(
            CHECK,
            False,
            f"{source.at(position)}: the table {source.name} has no column {name}",
            f"correct the name; the columns are {join_names(columns, 10)}",
        )
        for name, position in source.source.columns
        # A snapshot may have had other columns; with a point it is a field of one.
        if "as_of" not in source.source.fields and name.partition(".")[0].lower() not in known and name not in known
    ]


async def _looked(source: _CheckedInput, look: Callable[[], str]) -> DoctorResult | None:
    """Why there is no answer; None after one."""
    result = await timed_check(CHECK, look)
    if result.ok:
        return None
    return DoctorResult(CHECK, None, f"{source.at()}: not checked because {result.message}", result.help)


def _expected(writer: str | None) -> str | None:
    return None if writer is None else f"{writer} writes it; run that saga before"
