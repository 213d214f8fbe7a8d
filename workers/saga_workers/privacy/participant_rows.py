"""Replaces the values of sagas in the rows of the project's own participants, which keep what they have replied.

Such a row has no saga: its `saga_id` is the key of the command, which begins with the id of the saga that has sent it.
A command may arrive, and be carried out, after the values of its saga were forgotten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from saga_activities.guard.entry_key import PARTICIPANT_PREFIX, command_id_prefix, may_be_command_id
from saga_activities.guard.stored_values import StoredValues
from saga_activities.guard.tables import guard_table
from saga_activities.value_places import result_place
from saga_workers.privacy.places import ForgottenPlace
from saga_workers.privacy.replacement import Replacement, replaced_result
from sagas.text.shortening import counted

_KEY = tuple(guard_table.c[name] for name in ("saga_id", "step", "generation", "op"))


async def forget_commands(
    database: AsyncConnection, saga_ids: Sequence[str], values: StoredValues, replacement: Replacement
) -> list[ForgottenPlace]:
    """Replace the values in the results of the commands that these sagas have sent, and delete the hashes of their
    arguments. Without such rows there is no place.
    """
    changed, hashes, seen, uncertain = 0, 0, 0, 0
    ids = frozenset(saga_ids)
    for begin in [f"{id}/" for id in saga_ids if not _is_nested(id, ids)]:
        async for row in _rows(database, begin):
            new = None
            if row.result is not None:
                place = result_place(row.saga_id, row.step, row.generation, row.op)
                new = replaced_result(place, row.result, values, replacement)
            if not row.saga_id.startswith(begin):
                uncertain += new is not None
                continue
            seen += 1
            changes = ({} if new is None else {"result": new}) | ({} if row.args_hash is None else {"args_hash": None})
            if changes:
                here = sa.and_(*(column == row._mapping[column.name] for column in _KEY))
                await database.execute(sa.update(guard_table).where(here).values(**changes))
            changed += new is not None
            hashes += row.args_hash is not None
    places: list[ForgottenPlace] = []
    if seen:
        status = "replaced" if changed else "deleted" if hashes else "nothing"
        detail = f"in {changed} of {counted(seen, 'row')}, {counted(hashes, 'hash', 'hashes')} of arguments deleted"
        if status == "nothing":
            detail = f"no such value in {counted(seen, 'row')}"
        places.append(ForgottenPlace("replies of participants in saga_guard", status, detail))
    if uncertain:
        detail = (
            f"{counted(uncertain, 'row')} of commands whose keys are too long to tell which saga has sent them: delete"
            " those of the saga, and repeat the command"
        )
        places.append(ForgottenPlace("replies of participants to long keys in saga_guard", "stays", detail))
    return places


def _is_nested(id: str, ids: Collection[str]) -> bool:
    """Return whether it is nested in one of these sagas: the keys of its commands begin with that id as well."""
    return any(id[:at] in ids for at, character in enumerate(id) if character == "/")


async def _rows(database: AsyncConnection, begin: str) -> AsyncIterator[sa.Row[Any]]:
    """The rows of commands whose keys begin, or may begin, with this text. A collation may find others."""
    columns = guard_table.c
    query = sa.select(*_KEY, columns.result, columns.args_hash).where(
        columns.saga_id.startswith(command_id_prefix(begin), autoescape=True),
        columns.step.startswith(PARTICIPANT_PREFIX, autoescape=True),
        sa.or_(columns.result.is_not(None), columns.args_hash.is_not(None)),
    )
    for row in (await database.execute(query)).all():
        if may_be_command_id(row.saga_id, begin) and row.step.startswith(PARTICIPANT_PREFIX):
            yield row
