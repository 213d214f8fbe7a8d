"""Iceberg tables: the staged Parquet files become files of the table, in one commit with the mark in its snapshot.

Publishing compares the table with what was read before (see iceberg_catalogs.py), so there is no retry inside: a
conflict is the caller's to decide. A table that is missing is made by the first publication, from its schema. Taking
that publication back leaves the table there, empty: a pointer that is gone could be made again by a publisher that
was frozen before its first commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from saga_spark.job import Output
from saga_spark.keys import Target
from saga_spark.settings import SparkSettings
from saga_spark.sinks import iceberg_files as files
from saga_spark.sinks import iceberg_history as history
from saga_spark.sinks.files import resolve
from saga_spark.sinks.iceberg_catalogs import (
    Place,
    can_commit_together,
    commit,
    load_table,
    open_catalog,
    planned_location,
    trouble,
)
from saga_spark.sinks.iceberg_changes import Draft
from saga_spark.sinks.iceberg_deletes import ADVICE, has_equality_deletes
from saga_spark.sinks.iceberg_fit import misfits
from saga_spark.sinks.iceberg_rows import key_problems, where_problems
from saga_spark.sinks.iceberg_schema import partition_spec, staged_schema
from saga_spark.sinks.sink import Conflict, Publication, Published
from sagas.errors import Rejected, UsageError


class IcebergSink:
    """All tables of all catalogs of a project. Follows :class:`~saga_spark.sinks.sink.Sink`."""

    def __init__(self, settings: SparkSettings) -> None:
        self._settings = settings

    def validate(self, output: Output) -> None:
        """Raises UsageError."""
        self._settings.catalog(Place.parse(output.place).catalog)

    def validate_together(self, outputs: Sequence[Output]) -> None:
        """One catalog, and it has transactions over several tables. Raises UsageError, Infrastructure."""
        names = sorted({Place.parse(output.place).catalog for output in outputs})
        if len(names) > 1:
            raise UsageError(f"no single commit can publish tables of the catalogs {' and '.join(names)} together")
        for name in names:
            with trouble(f"[catalogs.{name}]"):
                if not can_commit_together(self._open(name)):
                    raise UsageError(f"the catalog {name} cannot publish several tables together")

    def check(self, publication: Publication) -> list[str]:
        with trouble(publication.output.place):
            return self._problems(publication)

    def _problems(self, publication: Publication) -> list[str]:
        output, manifest = publication.output, publication.manifest
        place = Place.parse(output.place)
        catalog = self._open(place.catalog)
        table = load_table(catalog, place)
        try:
            metadata = table.metadata if table else self._planned(catalog, place, staged_schema(manifest), output)
            problems = misfits(metadata, publication)
        except ValueError as error:
            return [str(error)]
        if problems:
            return problems
        io = self._io(catalog, table)
        head = metadata.current_snapshot()
        if output.mode != "append" and head is not None and has_equality_deletes(io, head):
            problems.append(f"rows of the table {output.place} are deleted by equality deletes; {ADVICE}")
        uris = [file.uri for file in manifest.files if file.rows]
        for column, number in sorted(set(files.field_ids(uris))):
            if number != metadata.schema().find_field(column).field_id:
                problems.append(f"the files' column {column} has the field id {number}, which is another column's")
        if output.mode == "overwrite_where":
            problems += where_problems(manifest, metadata.schema(), output.where)
        if output.mode == "merge":
            problems += key_problems(manifest, metadata.schema(), output.key)
        try:
            rows = sum(files.data_file(metadata, uri, *resolve(uri)).record_count for uri in uris)
            if rows != manifest.rows:
                problems.append(f"the staged files hold {rows} rows, and the manifest says {manifest.rows}")
        except ValueError as error:
            problems.append(str(error).splitlines()[0])
        if metadata.location:
            problems += files.space_problems(io, metadata.location, publication)
        return problems

    def place(self, publication: Publication) -> None:
        """Link or copy the files. Of a table that only a REST catalog can give a place to, that is left to publish."""
        place = Place.parse(publication.output.place)
        with trouble(publication.output.place):
            catalog = self._open(place.catalog)
            table = load_table(catalog, place)
            location = table.metadata.location if table else planned_location(catalog, place)
            if location is not None:
                files.place(self._io(catalog, table), location, publication)

    def read_state(self, publications: Sequence[Publication]) -> Any:
        """The exact metadata of each table by its name; None: there is no such table."""
        state: dict[str, str | None] = {}
        for place in {Place.parse(one.output.place) for one in publications}:
            with trouble(str(place)):
                table = load_table(self._open(place.catalog), place)
            state[str(place)] = table.metadata_location if table else None
        return state

    def publish(self, publications: Sequence[Publication], state: Any, *, together: bool) -> list[Published]:
        """Raises Conflict, Infrastructure; Rejected: another manifest is there, or what was placed is gone."""

        def one(publication: Publication, table: Table | None, place: Place) -> Published | None:
            target = publication.mark.target
            if table is not None:
                if (found := _found(table.metadata, target, place)) is not None:
                    if found.details["manifest"] != publication.mark.sha:
                        raise Rejected(
                            "another manifest is published under the key of this output",
                            there=found.details["manifest"],
                            ours=publication.mark.sha,
                        )
                    return found
                if history.was_taken_back(table.metadata, target):
                    raise Conflict(f"{target.step} has been taken back from the table {place}")
            if (table.metadata_location if table else None) != state.get(str(place)):
                raise Conflict(f"another one has changed the table {place} meanwhile")
            return None

        return self._commit(publications, together, Draft.publish, one)

    def unpublish(self, publications: Sequence[Publication], *, together: bool) -> list[Published]:
        return self._commit(publications, together, Draft.take_back, lambda *_: None)

    def _commit(
        self,
        publications: Sequence[Publication],
        together: bool,
        write: Callable[[Draft, Publication], Published],
        known: Callable[[Publication, Table | None, Place], Published | None],
    ) -> list[Published]:
        """Write each publication that is not ``known`` already; together: one commit for all of them."""
        done: list[Published] = []
        for group in [publications] if together else [[one] for one in publications]:
            with trouble(", ".join(one.output.place for one in group)):
                done += self._commit_group(group, write, known)
        return done

    def _commit_group(
        self,
        group: Sequence[Publication],
        write: Callable[[Draft, Publication], Published],
        known: Callable[[Publication, Table | None, Place], Published | None],
    ) -> list[Published]:
        done: list[Published] = []
        catalogs = {name: self._open(name) for name in {Place.parse(one.output.place).catalog for one in group}}
        if len(catalogs) > 1:
            raise UsageError(f"the catalogs {', '.join(sorted(catalogs))} cannot publish together")
        [catalog] = catalogs.values()
        tables: dict[Place, Table | None] = {}
        drafts: dict[Place, Draft] = {}
        try:
            for one in group:
                place = Place.parse(one.output.place)
                if place not in tables:
                    tables[place] = load_table(catalog, place)
                found = known(one, tables[place], place)
                if found is None:
                    if place not in drafts:
                        drafts[place] = Draft.begin(catalog, place, tables[place], one)
                    found = write(drafts[place], one)
                done.append(found)
            changes = [draft.change() for draft in drafts.values()]
        except BaseException:
            _abandon(drafts)
            raise
        try:
            if changes:
                commit(catalog, changes)
        except Conflict:  # after any other error nobody knows whether the files are in use
            _abandon(drafts)
            raise
        return done

    def find(self, output: Output, target: Target) -> Published | None:
        place = Place.parse(output.place)
        with trouble(output.place):
            table = load_table(self._open(place.catalog), place)
        return None if table is None else _found(table.metadata, target, place)

    def clean(self, publication: Publication) -> None:
        """What was committed once belongs to the table's history, and goes with the expiry of its snapshots."""
        place, target = Place.parse(publication.output.place), publication.mark.target
        with trouble(publication.output.place):
            catalog = self._open(place.catalog)
            table = load_table(catalog, place)
            if table is not None and history.ever_committed(table.metadata, target):
                return
            location = table.metadata.location if table else planned_location(catalog, place)
            if location is not None:
                files.remove(self._io(catalog, table), location, target)

    def forget(self, publication: Publication) -> None:
        """No undo may come any more: the pre-image may expire, and rows that were rolled back are deleted. To be called
        for what was published, or published and taken back. Raises Conflict: try again."""
        place, target = Place.parse(publication.output.place), publication.mark.target
        with trouble(publication.output.place):
            catalog = self._open(place.catalog)
            table = load_table(catalog, place)
            if table is None:
                return
            draft = Draft.begin(catalog, place, table, publication)
            if draft.forget(target):
                commit(catalog, [draft.change()])
            if not history.ever_committed(draft.metadata, target):
                files.remove(table.io, table.metadata.location, target)

    # ── parts ───────────────────────────────────────────────────────────────────────────────────────────────

    def _open(self, name: str) -> Catalog:
        return open_catalog(self._settings, name)

    def _io(self, catalog: Catalog, table: Table | None) -> FileIO:
        return table.io if table else load_file_io(catalog.properties, catalog.properties.get("warehouse"))

    def _planned(self, catalog: Catalog, place: Place, schema: Schema, output: Output) -> TableMetadata:
        """The table as the first publication will make it."""
        return new_table_metadata(
            location=planned_location(catalog, place) or "",
            schema=schema,
            partition_spec=partition_spec(schema, output.partition_by),
            sort_order=UNSORTED_SORT_ORDER,
        )


def _abandon(drafts: Mapping[Place, Draft]) -> None:
    for draft in drafts.values():
        draft.abandon()


def _found(metadata: TableMetadata, target: Target, place: Place) -> Published | None:
    ours = history.visible(metadata, target)
    if ours is None:
        return None
    words = history.said(ours)
    before = words.get(history.BEFORE, history.NOTHING)
    return Published(
        before=None if before == history.NOTHING else int(before),
        after=ours.snapshot_id,
        adopted=True,
        details={"table": str(place), "epoch": words.get("saga.epoch"), "manifest": words.get("saga.manifest")},
    )
