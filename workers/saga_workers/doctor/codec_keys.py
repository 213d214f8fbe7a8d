"""Values that are encrypted with a key of `[codec]` that the project does not have: it was removed too early."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa
from temporalio.client import Client

from saga_activities.guard.result_codec import encode_encrypted
from saga_activities.guard.stored_values import ENCRYPTED_BYTES
from saga_activities.guard.tables import guard_table, image_table, outbox_table, request_table, row_lock_table
from saga_activities.ledger.tables import run_table
from saga_activities.table_names import table_names
from saga_activities.value_cipher import ENCRYPTED_TEXT
from saga_workers.doctor.doctor_result import DoctorResult
from saga_workers.runtime.databases import command_database
from saga_workers.temporal.temporal_runs import list_runs
from sagas.protocol.origin import ENCRYPTED_VALUES
from sagas.protocol.payloads import OUTCOME_MEMO
from sagas.settings import Settings, SqlConnection
from sagas.settings.codec import load_codec_keys
from sagas.text.shortening import join_names

_TIMEOUT = 15.0

_ROWS = 10_000
"""Rows of a table that are looked at."""

_RUNS = 200

_KEY_ID = re.compile("[0-9a-f]{12}")
_KEY_LENGTH = 12

_RESULT = encode_encrypted("@", "").partition("@")[0]

_COLUMNS: tuple[tuple[sa.Column[Any], str | bytes], ...] = (
    (guard_table.c.result, _RESULT),
    (guard_table.c.origin, f'{{"{ENCRYPTED_VALUES}":"{ENCRYPTED_TEXT}'),
    (row_lock_table.c.row_key, ENCRYPTED_TEXT),
    (request_table.c.data, ENCRYPTED_TEXT),
    (request_table.c.origin, f'{{"{ENCRYPTED_VALUES}":"{ENCRYPTED_TEXT}'),
    (image_table.c.row_key, ENCRYPTED_TEXT),
    (outbox_table.c.value, ENCRYPTED_TEXT),
    (run_table.c.machine, ENCRYPTED_BYTES),
)
"""The columns with encrypted values, and what is before the id of the key."""


async def check_codec_keys(settings: Settings, client: Client | None, closed: Iterable[str]) -> list[DoctorResult]:
    """The keys that are missing, for each connection and for Temporal; nothing if there are none. Raises SagaError.

    A project without `[codec]` may have had one.
    """
    present = {key.id for key in load_codec_keys(settings.codec.key, settings.root)}
    results: list[DoctorResult] = []
    for connection in settings.sql_connections():
        if connection.name not in set(closed):
            missing = await _stored_keys(connection) - present
            results += _results(settings, f"the engine's tables in {connection.name}", missing)
    if client is not None:
        results += _results(settings, "outcomes of runs in Temporal", await _keys_of_runs(client) - present)
    return results


def _results(settings: Settings, where: str, missing: set[str]) -> list[DoctorResult]:
    if not missing:
        return []
    names = join_names(sorted(missing), 5)
    if settings.codec.key is None:
        why, help = (
            f"{where}: encrypted with {names}, and there is no [codec]",
            "set [codec] key to the earlier key again",
        )
    else:
        why = f"{where}: encrypted with {names}, which [codec] key lacks"
        help = "add the earlier key to [codec] key, after the present one"
    return [DoctorResult("codec", False, why, help)]


async def _stored_keys(connection: SqlConnection) -> set[str]:
    """The key ids in the engine's tables; anybody who may write a row may have written one."""
    keys: set[str] = set()
    what = f"the keys in the tables of {connection.name} cannot be read"
    async with command_database(connection, what, _TIMEOUT) as engine, engine.connect() as database:
        names = await table_names(database)
        for column, prefix in _COLUMNS:
            if column.table.name not in names:
                continue
            rows = sa.select(column.label("stored")).where(column.is_not(None)).limit(_ROWS).subquery()
            stored, length = rows.c.stored, len(prefix)
            query = sa.select(sa.func.substr(stored, length + 1, _KEY_LENGTH, type_=column.type)).distinct()
            query = query.where(sa.func.substr(stored, 1, length, type_=column.type) == prefix)
            keys.update(map(_text, (await database.execute(query)).scalars()))
    return {key for key in keys if _KEY_ID.fullmatch(key)}


def _text(key: str | bytes) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else key


async def _keys_of_runs(client: Client) -> set[str]:
    """The key ids that the outcomes of the newest closed runs name and that are not here."""
    keys: set[str] = set()
    count = 0
    async for run in list_runs(client, "CloseTime IS NOT NULL"):
        if OUTCOME_MEMO in run.raw.memo.fields and (key := await run.missing_memo_key(OUTCOME_MEMO)) is not None:
            keys.add(key)
        count += 1
        if count >= _RUNS:
            break
    return {key for key in keys if _KEY_ID.fullmatch(key)}
