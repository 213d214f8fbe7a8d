"""The only module that uses pyiceberg's private API. Every function was checked with pyiceberg 0.12.0, which is pinned.

Each function names what it uses, and the public API that would replace it; ``none`` means that pyiceberg has none for
the purpose. Before another version is pinned, compare each private name with that version's source.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import DEFAULT_ENDPOINTS, VIEW_ENDPOINTS, RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import ROWS_MUST_MATCH, _StrictMetricsEvaluator, bind
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import _OverwriteFiles

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import requests

_TRANSACTIONS_ENDPOINT = "transactions/commit"


def has_multi_table_commit(catalog: RestCatalog) -> bool:
    """Return whether a REST server commits several tables in one transaction.

    Uses ``RestCatalog._supported_endpoints``. pyiceberg has no public check of a
    server's endpoints that could replace it.
    """
    endpoints = catalog._supported_endpoints
    # A server that lists no endpoints supports the defaults of the specification, which include transactions.
    lists_nothing = endpoints - set(VIEW_ENDPOINTS) == set(DEFAULT_ENDPOINTS)
    return lists_nothing or any(str(endpoint).endswith(_TRANSACTIONS_ENDPOINT) for endpoint in endpoints)


def post_multi_table_commit(catalog: RestCatalog, body: bytes) -> requests.Response:
    """Send a ``CommitTransactionRequest`` (JSON) to a REST server, with the catalog's credentials.

    Uses ``RestCatalog._session``. Replacement: none; a commit of several tables by ``Catalog``.
    """
    return catalog._session.post(catalog.url(_TRANSACTIONS_ENDPOINT), data=body)


def write_next_metadata(
    catalog: SqlCatalog,
    table: Table | None,
    identifier: tuple[str, ...],
    requirements: tuple[TableRequirement, ...],
    updates: tuple[TableUpdate, ...],
) -> StagedTable:
    """Write the metadata file of a table's next version, which nothing refers to yet.

    ``table`` is None for a new table. Uses ``Catalog._update_and_stage_table`` and ``Catalog._write_metadata``.
    Replacement: none; ``Catalog.commit_table`` also moves the pointer, each in a transaction of its own.
    """
    staged = catalog._update_and_stage_table(table, identifier, requirements, updates)
    catalog._write_metadata(staged.metadata, staged.io, staged.metadata_location)
    return staged


def new_pointer_row(catalog: SqlCatalog, namespace: str, table: str, location: str) -> dict[str, Any]:
    """The row of a new table in ``iceberg_tables``, in the version of the catalog's schema.

    Uses ``SqlCatalog._create_table_row``. Replacement: none, as for :func:`write_next_metadata`.
    """
    return catalog._create_table_row(namespace, table, location)


def transaction_table(transaction: Transaction) -> Table:
    """The table on which a transaction was opened.

    Uses ``Transaction._table``. Replacement: none; a property of ``Transaction``.
    """
    return transaction._table


def pending_updates(transaction: Transaction) -> tuple[TableUpdate, ...]:
    """The updates that a commit of the transaction would send.

    Uses ``Transaction._updates``. Replacement: none; a property of ``Transaction``.
    """
    return transaction._updates


def delete_uncommitted_files(transaction: Transaction) -> None:
    """Delete the manifests that the snapshots of a transaction have written.

    Uses ``Transaction._snapshot_producers`` and ``_SnapshotProducer._clean_all_uncommitted``. Replacement: none; a
    rollback of ``Transaction``.
    """
    for producer in transaction._snapshot_producers:
        producer._clean_all_uncommitted()


def overwrite_files(
    transaction: Transaction, io: FileIO, operation: Operation, summary: dict[str, str]
) -> _OverwriteFiles:
    """A snapshot that deletes and adds whole files under the given operation.

    Uses ``_OverwriteFiles``. Replacement: ``UpdateSnapshot.overwrite``, once it takes the operation, and deletes files
    of a partition whose value is NaN.
    """
    return _Overwrite(operation=operation, transaction=transaction, io=io, snapshot_properties=summary)


class _Overwrite(_OverwriteFiles):
    def _build_delete_files_partition_predicate(self) -> None:
        """The predicate only saves reading manifests; pyiceberg cannot write one for NaN, so then all are read."""
        values = [(file.spec_id, file.partition[index])
                  for file in self._deleted_data_files for index in range(len(file.partition))]  # fmt: skip
        if not any(value != value for _, value in values):
            super()._build_delete_files_partition_predicate()
            return
        for spec_id, _ in values:
            self.partition_filters[spec_id] = AlwaysTrue()


def append_after(transaction: Transaction, parent: int | None, summary: dict[str, str]) -> int:
    """Add an empty append whose parent is any snapshot (None: no parent); returns the new snapshot's id.

    Uses ``_SnapshotProducer._parent_snapshot_id``. Replacement: none; moving a branch with ``ManageSnapshots`` creates
    no snapshot, so that an earlier head would occur again.
    """
    producer = transaction.update_snapshot(snapshot_properties=summary).fast_append()
    producer._parent_snapshot_id = parent
    producer.commit()
    return producer.snapshot_id


def strict_file_matcher(schema: Schema, predicate: BooleanExpression) -> Callable[[DataFile], bool]:
    """A function that tells whether the metrics of a file prove that every row of it matches.

    Uses ``_StrictMetricsEvaluator``. Replacement: none; ``Table.delete`` applies it itself.
    """
    evaluator = _StrictMetricsEvaluator(schema, predicate, case_sensitive=True)
    return lambda file: evaluator.eval(file) == ROWS_MUST_MATCH


def complement_filter(schema: Schema, predicate: BooleanExpression) -> pc.Expression:
    """The filter for rows that do not match, including those for which the predicate is null.

    Uses ``_expression_to_complementary_pyarrow``. Replacement: none; ``Table.delete`` applies it itself.
    """
    from pyiceberg.io.pyarrow import _expression_to_complementary_pyarrow

    return _expression_to_complementary_pyarrow(bind(schema, predicate, case_sensitive=True), schema)


def data_file_writer(metadata: TableMetadata, io: FileIO) -> Callable[[pa.Table], Iterable[DataFile]]:
    """A function that writes rows as data files of the table, which no snapshot refers to yet.

    Uses ``_dataframe_to_data_files``. Replacement: none; ``Table.append`` also adds a snapshot.
    """
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    write_uuid, counter = uuid.uuid4(), itertools.count()
    return lambda rows: _dataframe_to_data_files(metadata, rows, io, write_uuid, counter)
