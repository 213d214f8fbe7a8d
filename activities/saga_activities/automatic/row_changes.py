"""The order in which the steps of one saga have changed a row, and which of them are undone.

Steps that run at the same time (branches, items of a `for_each`, nested sagas) change a row in an order that only the
database decides: each holds the row until it commits. So the changes of a row are numbered in the transaction of the
change, and an undo leaves a row that was changed later to the undo of that change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from saga_activities.automatic.row_image import RowImage, net_images
from saga_activities.automatic.row_locks import LockedRow
from saga_activities.guard.session import SqlSession
from saga_activities.guard.tables import EntryKey
from sagas.protocol.locks import owner_id
from sagas.text.exact_json import decode_json, encode_json

_BATCH = 500
_BEYOND = 1_000_000
"""More than the images of any entry."""


INSERT_IMAGE = (
    "INSERT INTO saga_image (saga_id, step, generation, sequence, statement, row_hash, row_change, undo_scope,"
    " table_name, row_key, before_image, after_image, created_at) VALUES (:saga_id, :step, :generation, :sequence,"
    " :statement, :row_hash, :row_change, :undo_scope, :table_name, :row_key, :before_image, :after_image, :created_at)"
)

_MYSQL = ("mysql", "mariadb")


async def number_changes(sql: SqlSession, images: Sequence[dict[str, Any]]) -> None:
    """Set ``row_change`` of the images of a step, whose rows are locked by this transaction."""
    last: dict[str, int] = {}
    # A snapshot may be older than the change of a step that this transaction has waited for; a locking read never is.
    lock = " LOCK IN SHARE MODE" if sql.dialect in _MYSQL else ""
    for names, values in _batches([image["row_hash"] for image in images]):
        statement = f"SELECT row_hash, row_change FROM saga_image WHERE row_hash IN ({names}){lock}"
        for row in await sql.all(statement, values):
            last[row["row_hash"]] = max(row["row_change"], last.get(row["row_hash"], 0))
    for image in images:
        last[image["row_hash"]] = image["row_change"] = last.get(image["row_hash"], 0) + 1


def images_digest(stored: Sequence[Mapping[str, Any]]) -> str:
    """The state of the images of an entry: another one as soon as something is passed on to them."""
    images = [[row["sequence"], row["row_hash"], row["before_image"]] for row in stored]
    return hashlib.sha256(encode_json(images)).hexdigest()


async def mark_undone(sql: SqlSession, entry_key: EntryKey) -> None:
    """Mark the images of an entry whose undo begins or is skipped, so that no other undo passes anything on to them."""
    await sql.run(f"UPDATE saga_image SET undone = 1 WHERE {_ENTRY}", entry_key.values)


async def pass_on(
    sql: SqlSession, entry_key: EntryKey, images: Sequence[RowImage], stored: Sequence[Mapping[str, Any]]
) -> tuple[list[RowImage], EntryKey | None]:
    """The images of the rows that the undo of the entry has to restore itself, and who takes the last of the others.

    A row that another step of the same root saga has changed later is as that step has left it. If its undo is certain,
    its image gets the state from before this entry, and it restores the row for both. It is not certain in another
    scope: a `compensate` of the parent may run instead, or that saga may stay. ``stored`` are the stored images.
    """
    first, last = net_images(images)
    number = {image.row: row["row_change"] for image, row in zip(images, stored, strict=True)}
    by_hash = {row.hash: row for row in last}
    scope = {row["row_hash"]: row["undo_scope"] for row in stored}
    seen: set[LockedRow] = set()
    passed: set[LockedRow] = set()
    heir: EntryKey | None = None
    for names, values in _batches(list(by_hash)):
        # The undo of another step may be on its way: it has marked its images, and this waits for its end.
        lock = {"sqlite": "", "postgresql": " FOR UPDATE OF i"}.get(sql.dialect, " FOR UPDATE")
        later = await sql.all(_SELECT_LATER.format(names=names) + lock, values)
        for other in later:
            row = by_hash[other["row_hash"]]
            key = EntryKey(other["saga_id"], other["step"], other["generation"])
            if (
                row in seen
                or key == entry_key
                or other["row_change"] <= number[row]
                or owner_id(key.saga_id) != owner_id(entry_key.saga_id)
            ):
                continue
            seen.add(row)  # only the next change has the state that this step has left as its own `before`
            if other["undo_scope"] != scope[row.hash]:
                continue
            passed.add(row)
            before, heir = first[row], key
            encoded = None if before is None else encode_json(dict(before)).decode()
            await sql.run(
                f"UPDATE saga_image SET before_image = :before_image WHERE {_ENTRY} AND sequence = :sequence",
                {**key.values, "sequence": other["sequence"], "before_image": encoded},
            )
    return [image for image in images if image.row not in passed], heir


async def pass_on_images(
    sql: SqlSession, heir: EntryKey, stored: Sequence[Mapping[str, Any]], types: Mapping[str, Mapping[str, str]]
) -> None:
    """Give images to another entry, as if its step had made these changes before its own ones.

    ``types``: those of the columns of their tables.
    """
    values, count, statements = heir.values, len(stored), max(row["statement"] for row in stored)
    header = await sql.one(
        f"SELECT row_key, before_image, created_at FROM saga_image WHERE {_ENTRY} AND sequence = 0", values
    )
    # In two steps, as a database may check the primary key row by row.
    for shift, more in ((_BEYOND + count, statements), (-_BEYOND, 0)):
        await sql.run(
            "UPDATE saga_image SET sequence = sequence + :shift, statement = statement + :more"
            f" WHERE {_ENTRY} AND sequence > 0",
            {**values, "shift": shift, "more": more},
        )
    await sql.run(
        f"UPDATE saga_image SET row_key = :row_key, before_image = :types WHERE {_ENTRY} AND sequence = 0",
        {
            **values,
            "row_key": str(int(header["row_key"]) + count),
            "types": encode_json({**types, **decode_json(header["before_image"])}).decode(),
        },
    )
    rows = [{**row, **values, "created_at": header["created_at"], "sequence": at} for at, row in enumerate(stored, 1)]
    await sql.run(INSERT_IMAGE, rows)


_ENTRY = "saga_id = :saga_id AND step = :step AND generation = :generation"


_SELECT_LATER = """
SELECT i.saga_id, i.step, i.generation, i.sequence, i.row_hash, i.row_change, i.undo_scope FROM saga_image i
LEFT JOIN saga_guard g
  ON g.saga_id = i.saga_id AND g.step = i.step AND g.generation = i.generation AND g.op = 'undo'
WHERE i.row_hash IN ({names}) AND i.undone = 0 AND g.op IS NULL
ORDER BY i.row_change"""


def _batches(hashes: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Names of parameters for a list of SQL, with their values."""
    distinct = sorted(set(hashes))
    for start in range(0, len(distinct), _BATCH):
        values = {f"hash{index}": hash for index, hash in enumerate(distinct[start : start + _BATCH])}
        yield ", ".join(f":{name}" for name in values), values
