"""What is staged and published, against the ledger of outputs and the sagas: few rows, so plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import fs
from sqlalchemy import inspect
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_spark import ledger
from saga_spark.job import Output
from saga_spark.keys import Target
from saga_spark.ledger import OutputRow
from saga_spark.publications import output_of
from saga_spark.reconcile.extract import Scope
from saga_spark.reconcile.findings import Finding
from saga_spark.reconcile.journal import BROKEN, FINAL
from saga_spark.settings import SparkSettings
from saga_spark.sinks.files import local_path
from saga_spark.sinks.registry import sink_for
from saga_spark.storage import local_or_uri


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was found of one output. ``staged``: its generation has files in the stage area; ``visible``: readers see
    what it published."""

    row: OutputRow
    staged: bool
    visible: bool


@dataclass(frozen=True, slots=True)
class Stranger:
    """A publication that carries a saga's mark and has no row in the ledger."""

    place: str
    target: Target


def judge(one: Evidence, state: str | None) -> Finding | None:
    """``state`` is the saga's, None: nobody knows it. None: the books agree about this output."""
    row = one.row

    def finding(kind: str, **details: Any) -> Finding:
        target = row.target
        told = {"output": target.output, "ledger_says": row.state, **details}
        return Finding(
            kind, target.saga_id, row.saga, state or "UNKNOWN", target.step, target.generation, row.place, None, told
        )

    if one.visible and row.state in ("RETRACTED", "DISCARDED", "QUARANTINED", "STAGING"):
        return finding("published_unclaimed")
    if one.visible and state == "COMPENSATED":
        return finding("effect_still_there")
    if state == "COMPLETED" and (row.state == "STAGED" or (row.state == "PUBLISHED" and not one.visible)):
        return finding("saga_without_effect")
    over = state is None or state in FINAL or (state in BROKEN and row.state == "STAGING")
    if over and one.staged and row.state in ("STAGING", "STAGED", "DISCARDED", "RETRACTED"):
        return finding("staged_left")
    return None


async def read_ledger(engine: AsyncEngine, scope: Scope) -> list[OutputRow]:
    """The outputs in scope; none where the database keeps none."""
    async with engine.connect() as connection:
        if not await connection.run_sync(lambda sync: inspect(sync).has_table(ledger.outputs.name)):
            return []
        table = ledger.outputs.c
        query = ledger.outputs.select()
        if scope.saga_id is not None:
            nested = table.saga_id.startswith(f"{scope.saga_id}/", autoescape=True)
            query = query.where((table.saga_id == scope.saga_id) | nested)
        elif scope.since is not None:
            query = query.where(table.updated_at >= scope.since)
        return [OutputRow.read(row) for row in (await connection.execute(query)).mappings()]


def look(row: OutputRow, settings: SparkSettings) -> Evidence:
    """Ask the stage area and the sink. Blocks."""
    output = output_of(row)
    system, path = fs.FileSystem.from_uri(f"{settings.stage}/{row.target.key}/g{row.target.generation}")
    staged = system.get_file_info(path).type is fs.FileType.Directory
    found = sink_for(output.kind, settings).find(output, row.target)
    # What a topic has stays there: a closed publication is one that a person has taken back by events of their own.
    visible = found is not None and not found.details.get("closed")
    return Evidence(row, staged, visible)


def strangers(rows: Iterable[OutputRow], settings: SparkSettings) -> list[Stranger]:
    """Visible publications that no row knows, in all places that some row publishes to. Blocks."""
    rows = list(rows)
    known = {row.target.name for row in rows}
    outputs = {(output.kind, output.connection, output.place): output
               for output in map(output_of, rows)}  # fmt: skip
    found: dict[str, Stranger] = {}
    for output in outputs.values():
        sink = sink_for(output.kind, settings)
        for target in _marks(output, settings):
            if target.name not in known and target.name not in found and sink.find(output, target) is not None:
                found[target.name] = Stranger(output.place, target)
    return list(found.values())


def unclaimed(strangers: Sequence[Stranger], states: Mapping[str, str]) -> list[Finding]:
    return [
        Finding(
            "published_unclaimed",
            one.target.saga_id,
            None,
            states.get(one.target.saga_id, "UNKNOWN"),
            one.target.step,
            one.target.generation,
            one.place,
            None,
            {"output": one.target.output, "ledger_says": "nothing"},
        )
        for one in strangers
    ]


def _marks(output: Output, settings: SparkSettings) -> Iterator[Target]:
    """Whose publications this place has ever had."""
    match output.kind:
        case "iceberg":
            from saga_spark.sinks.iceberg_catalogs import Place, load_table, open_catalog
            from saga_spark.sinks.iceberg_history import lineage, said

            place = Place.parse(output.place)
            table = load_table(open_catalog(settings, place.catalog), place)
            words = [] if table is None else [said(one) for one in lineage(table.metadata)]
        case "parquet":
            from saga_spark.sinks.parquet_pointer import CURRENT, Pointer

            folder = local_path(local_or_uri(output.place, settings.root))
            pointer = None if folder is None else folder / CURRENT
            text = pointer.read_text(encoding="utf-8") if pointer is not None and pointer.exists() else None
            words = [] if text is None else [one.mark for one in Pointer.parse(text, output.place).entries]
        case "topic":
            from saga_spark.sinks.topic_progress import all_of

            words = [one.mark for one in all_of(settings.kafka, output.place)]
        case _:
            words = _rows_of(output, settings)
    for word in words:
        if "saga.key" in word:
            yield Target(word["saga.id"], word["saga.step"], int(word["saga.generation"]), word["saga.output"])


def _rows_of(output: Output, settings: SparkSettings) -> list[Mapping[str, str]]:
    import psycopg

    assert output.connection is not None
    with psycopg.connect(settings.connection(output.connection)) as connection:
        if connection.execute("select to_regclass('saga_publication')").fetchone() == (None,):
            return []
        rows = connection.execute(
            "select publish_key, saga_id, step, generation::text, output from saga_publication"
            " where state = 'PUBLISHED'"
        ).fetchall()
    names = ("saga.key", "saga.id", "saga.step", "saga.generation", "saga.output")
    return [dict(zip(names, row, strict=True)) for row in rows]
