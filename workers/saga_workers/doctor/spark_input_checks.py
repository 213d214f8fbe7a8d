"""Looks for the files and the tables of catalogs that the inputs of Spark steps name. Spark is not started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saga_spark.settings import SparkSettings, spark_settings
from saga_workers.doctor.doctor_result import DoctorResult, timed_check
from sagas.definition.checks.spark_inputs import WrittenInput, literal_text, spark_inputs, spark_outputs
from sagas.definition.diagnostics import Positioned
from sagas.definition.parser.draft import SagaDraft
from sagas.errors import SagaError
from sagas.project import Project
from sagas.text.shortening import join_names

if TYPE_CHECKING:
    from saga_spark.inputs.input_columns import InputColumns

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
            name = literal_text(output.get("parquet" if "parquet" in output else "table"))
            if name is not None and "connection" not in output:
                writers.setdefault(name, f"{draft.definition.saga}/{step}")
    return writers


async def _check(source: _CheckedInput, spark: SparkSettings, writer: str | None) -> list[DoctorResult]:
    seen: list[InputColumns | None] = []

    def look() -> str:
        from saga_spark.inputs.input_columns import parquet_columns, table_columns

        seen.append(table_columns(spark, source.name) if source.is_table else parquet_columns(source.name, spark.root))
        return ""

    if (result := await _looked(source, look)) is not None:
        return [result]
    (columns,) = seen
    if columns is None:
        return [_missing(source, writer)]
    if "as_of" in source.source.fields:
        return []  # a snapshot may have had other columns
    return [*_unknown_columns(source, columns), *_wrong_values(source, columns)]


def _missing(source: _CheckedInput, writer: str | None) -> DoctorResult:
    if not source.is_table:
        why = f"{source.at()}: no Parquet files are at {source.name} yet"
        help = _expected(writer) or "write them before the step runs, or correct the path"
        return DoctorResult(CHECK, None, why, help)
    why = f"{source.at()}: the table {source.name} does not exist"
    if writer is not None:
        return DoctorResult(CHECK, None, f"{why} yet", _expected(writer))
    return DoctorResult(CHECK, False, why, "create the table, or correct its name")


def _unknown_columns(source: _CheckedInput, columns: InputColumns) -> Iterator[DoctorResult]:
    place = f"the table {source.name} has" if source.is_table else f"the Parquet files at {source.name} have"
    for name, position in source.source.columns:
        if columns.is_complete and name not in columns.names:
            help = f"correct the name; the columns are {join_names(columns.names, 10)}"
            yield DoctorResult(CHECK, False, f"{source.at(position)}: {place} no column {name}", help)


def _wrong_values(source: _CheckedInput, columns: InputColumns) -> Iterator[DoctorResult]:
    for name, values, position in source.source.conditions:
        if (problem := columns.value_problem(name, values)) is not None:
            why, _, help = problem.rpartition("; ")
            yield DoctorResult(CHECK, False, f"{source.at(position)}: {why}", help)


async def _looked(source: _CheckedInput, look: Callable[[], str]) -> DoctorResult | None:
    """Why there is no answer; None after one."""
    try:
        result = await timed_check(CHECK, look)
    except Exception as error:  # noqa: BLE001 - of a storage or a file, and the other inputs are checked
        why = " ".join(str(error).split())[:300] or type(error).__name__
        help = "make the input readable from here, or correct its name"
        return DoctorResult(CHECK, None, f"{source.at()}: not checked because {why}", help)
    if result.ok:
        return None
    return DoctorResult(CHECK, None, f"{source.at()}: not checked because {result.message}", result.help)


def _expected(writer: str | None) -> str | None:
    return None if writer is None else f"{writer} writes it; run that saga before"
