"""Compares staged and published outputs with their records and the sagas. They are few, so this needs no Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import fs
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.table_names import table_names
from saga_spark import output_records
from saga_spark.database_sessions import database_session
from saga_spark.job.job_spec import Output
from saga_spark.manifest import Target
from saga_spark.output_records import OutputRow, output_of
from saga_spark.reconcile.extracts import ABNORMAL_STATES, FINAL_STATES, ReconciliationScope
from saga_spark.reconcile.findings import Finding
from saga_spark.settings import SparkSettings
from saga_spark.sinks.sink import sink_for
from saga_spark.storage import local_path, project_location


@dataclass(frozen=True, slots=True)
class OutputEvidence:
    """The observed state of one output. ``staged``: its files are in the stage area; ``visible``: readers see it."""

    row: OutputRow
    staged: bool
    visible: bool


@dataclass(frozen=True, slots=True)
class OrphanOutput:
    """A publication with a saga's commit tag but without an output record."""

    place: str
    target: Target


def _finding(kind: str, row: OutputRow, state: str | None, **details: Any) -> Finding:
    target = row.target
    all_details = {"output": target.output, "recorded_state": row.state, **details}
    return Finding(
        kind,
        target.saga_id,
        row.saga,
        state or "UNKNOWN",
        target.step,
        target.generation,
        row.place,
        None,
        all_details,
    )


def check_output(evidence: OutputEvidence, state: str | None) -> Finding | None:
    """The mismatch between the record of an output, what is observed, and the state of its saga (None: unknown).

    None if all of them agree.
    """
    row = evidence.row
    if row.state == "CLOSED":
        return None
    if evidence.visible and row.state in ("REVERTED", "DISCARDED", "QUARANTINED", "STAGING"):
        return _finding("published_unclaimed", row, state)
    if evidence.visible and state == "COMPENSATED":
        return _finding("effect_not_undone", row, state)
    if state == "COMPLETED" and (row.state == "STAGED" or (row.state == "PUBLISHED" and not evidence.visible)):
        return _finding("saga_without_effect", row, state)
    over = state is None or state in FINAL_STATES or (state in ABNORMAL_STATES and row.state == "STAGING")
    if over and evidence.visible and row.state == "STAGED":
        return _finding("published_unclaimed", row, state)  # discarding its stage would deny what is visible
    if over and evidence.staged and row.state in ("STAGING", "STAGED", "DISCARDED", "REVERTED"):
        return _finding("staged_left", row, state)
    return None


def closed_publications(rows: Iterable[OutputRow]) -> list[dict[str, Any]]:
    """The outputs that an operator has decided to be reverted by hand, which is not a difference.

    Each has saga_id, saga, step, generation, output, place, state, at, who, reason and evidence.
    """
    return [
        {
            "saga_id": row.target.saga_id,
            "saga": row.saga,
            "step": row.target.step,
            "generation": row.target.generation,
            "output": row.target.output,
            "place": row.place,
            "state": row.state,
            **row.published["closed"],
        }
        for row in rows
        if row.state == "CLOSED" and row.published is not None
    ]


def partial_publications(
    evidence: Iterable[OutputEvidence], states: Mapping[str, str], settings: SparkSettings
) -> list[Finding]:
    """A finding for each saga whose outputs of `publish: together` are visible only in part. Blocking I/O."""
    groups: dict[str, list[OutputEvidence]] = {}
    for output in evidence:
        if output.row.together and output.row.state in ("STAGED", "PUBLISHED"):
            groups.setdefault(output.row.target.saga_id, []).append(output)
    findings: list[Finding] = []
    for saga_id, group in groups.items():
        if not _is_partial(group):
            continue
        # The outputs were looked at one after the other, so a commit may have come in between.
        group = [collect_evidence(output.row, settings) for output in group]
        if _is_partial(group):
            published = next(output.row for output in group if output.visible)
            missing = ", ".join(output.row.place for output in group if not output.visible)
            findings.append(_finding("published_partly", published, states.get(saga_id), missing=missing))
    return findings


def _is_partial(group: Sequence[OutputEvidence]) -> bool:
    return len({output.visible for output in group}) > 1


async def read_output_records(engine: AsyncEngine, scope: ReconciliationScope) -> list[OutputRow]:
    """The outputs in scope; empty if the database has no table of them."""
    async with engine.connect() as connection:
        if output_records.outputs.name not in await table_names(connection):
            return []
        table = output_records.outputs.c
        query = output_records.outputs.select()
        if scope.saga_id is not None:
            nested = table.saga_id.startswith(f"{scope.saga_id}/", autoescape=True)
            query = query.where((table.saga_id == scope.saga_id) | nested)
        elif scope.since is not None:
            query = query.where(table.updated_at >= scope.since)
        return [OutputRow.from_row(row) for row in (await connection.execute(query)).mappings()]


def collect_evidence(row: OutputRow, settings: SparkSettings) -> OutputEvidence:
    """Query the stage area and the sink. Blocks."""
    output = output_of(row)
    system, path = fs.FileSystem.from_uri(f"{settings.stage}/{row.target.publish_key}/g{row.target.generation}")
    staged = system.get_file_info(path).type is fs.FileType.Directory
    published = sink_for(output.kind, settings).find(output, row.target)
    # Records stay in a topic: a closed publication is one that an operator has compensated with other events.
    visible = published is not None and not published.details.get("closed")
    return OutputEvidence(row, staged, visible)


def find_orphans(
    rows: Iterable[OutputRow], settings: SparkSettings, saga_ids: Collection[str] | None = None
) -> list[OrphanOutput]:
    """Visible publications without an output record, in all destinations of the given rows. Blocks.

    ``saga_ids``: only those of these sagas.
    """
    rows = list(rows)
    names = {row.target.name for row in rows}
    outputs = {(output.kind, output.connection, output.destination): output
               for output in map(output_of, rows)}  # fmt: skip
    orphans: dict[str, OrphanOutput] = {}
    for output in outputs.values():
        sink = sink_for(output.kind, settings)
        for target in _published_targets(output, settings):
            if saga_ids is not None and target.saga_id not in saga_ids:
                continue
            if target.name not in names and target.name not in orphans and sink.find(output, target) is not None:
                orphans[target.name] = OrphanOutput(output.destination, target)
    return list(orphans.values())


def orphan_findings(orphans: Sequence[OrphanOutput], states: Mapping[str, str]) -> list[Finding]:
    return [
        Finding(
            "published_unclaimed",
            orphan.target.saga_id,
            None,
            states.get(orphan.target.saga_id, "UNKNOWN"),
            orphan.target.step,
            orphan.target.generation,
            orphan.place,
            None,
            {"output": orphan.target.output, "recorded_state": "nothing"},
        )
        for orphan in orphans
    ]


def without_published_effects(findings: Iterable[Finding], outputs: Iterable[Finding]) -> list[Finding]:
    """The findings without the effects that a guard does not know, and whose rows are published: they are not missing,
    and an undo of the saga would not find them. ``outputs``: the findings about outputs.
    """
    published = {(output.saga_id, output.step) for output in outputs if output.kind == "published_unclaimed"}
    return [
        finding
        for finding in findings
        if not (lacks_guard_row(finding) and (finding.saga_id, finding.step) in published)
    ]


def lacks_guard_row(finding: Finding) -> bool:
    """Return whether a saga says that a step is done, and the guard does not know its effect."""
    return finding.kind == "saga_without_effect" and finding.place is None


def _published_targets(output: Output, settings: SparkSettings) -> Iterator[Target]:
    """The targets of all publications that this destination has ever had."""
    match output.kind:
        case "iceberg":
            from saga_spark.sinks.iceberg.catalog import TableName, load_table, open_catalog
            from saga_spark.sinks.iceberg.snapshot_history import lineage, summary_properties

            table_name = TableName.parse(output.destination)
            table = load_table(open_catalog(settings, table_name.catalog), table_name)
            tags = [] if table is None else [summary_properties(snapshot) for snapshot in lineage(table.metadata)]
        case "parquet":
            from saga_spark.sinks.parquet.parquet_pointer import CURRENT, Pointer

            folder = local_path(project_location(output.destination, settings.root))
            pointer = None if folder is None else folder / CURRENT
            text = pointer.read_text(encoding="utf-8") if pointer is not None and pointer.exists() else None
            tags = [] if text is None else [entry.mark for entry in Pointer.parse(text, output.destination).entries]
        case "topic":
            from saga_spark.sinks.kafka.topic_progress import visible_publications

            tags = [publication.mark for publication in visible_publications(settings.kafka, output.destination)]
        case _:
            tags = _postgresql_tags(output, settings)
    for tag in tags:
        if "saga.key" in tag:
            yield Target(tag["saga.id"], tag["saga.step"], int(tag["saga.generation"]), tag["saga.output"])


def _postgresql_tags(output: Output, settings: SparkSettings) -> list[Mapping[str, str]]:
    assert output.connection is not None
    url = settings.connection(output.connection)
    with database_session(url, output.connection, settings.trusted_roles.get(output.connection, ())) as connection:
        if connection.execute("select to_regclass('saga_publication')").fetchone() == (None,):
            return []
        rows = connection.execute(
            "select publish_key, saga_id, step, generation::text, output from saga_publication"
            " where state = 'PUBLISHED'"
        ).fetchall()
    names = ("saga.key", "saga.id", "saga.step", "saga.generation", "saga.output")
    return [dict(zip(names, row, strict=True)) for row in rows]
