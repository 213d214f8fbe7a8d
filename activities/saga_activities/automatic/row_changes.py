"""The order in which the steps of one saga have changed a row, and which of them are undone.

Steps that run at the same time (branches, items of a `for_each`, nested sagas) change a row in an order that only the
database decides: each holds the row until it commits. So the changes of a row are numbered in the transaction of the
change, and an undo leaves a row that was changed later to the undo of that change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from saga_activities.automatic.row_image import RowImage, net_images
from saga_activities.automatic.row_locks import LockedRow
from saga_activities.guard.session import SqlSession
from saga_activities.guard.tables import EntryKey
from sagas.protocol.locks import owner_id
from sagas.text.exact_json import encode_json

_BATCH = 500


async def number_changes(sql: SqlSession, images: Sequence[dict[str, Any]]) -> None:
    """Set ``row_change`` of the images of a step, whose rows are locked by this transaction."""
    last: dict[str, int] = {}
    for names, values in _batches([image["row_hash"] for image in images]):
        statement = (
            f"SELECT row_hash, MAX(row_change) AS row_change FROM saga_image WHERE row_hash IN ({names})"
            " GROUP BY row_hash"
        )
        last |= {row["row_hash"]: row["row_change"] for row in await sql.all(statement, values)}
    for image in images:
        last[image["row_hash"]] = image["row_change"] = last.get(image["row_hash"], 0) + 1


async def mark_undone(sql: SqlSession, entry_key: EntryKey) -> None:
    """Mark the images of an entry whose undo begins or is skipped, so that no other undo passes anything on to them."""
    await sql.run(
        "UPDATE saga_image SET undone = 1 WHERE saga_id = :saga_id AND step = :step AND generation = :generation",
        {"saga_id": entry_key.saga_id, "step": entry_key.entry, "generation": entry_key.generation},
    )


async def pass_on(
    sql: SqlSession, entry_key: EntryKey, images: Sequence[RowImage], numbers: Sequence[int]
) -> list[RowImage]:
    """The images of the rows that the undo of the entry has to restore itself.

    A row that another step of the same root saga has changed later, and that is still to be undone, is as that step
    has left it. Its image gets the state from before this entry, and its undo restores the row for both. ``numbers``
    are those of the images.
    """
    first, last = net_images(images)
    number = {image.row: sequence for image, sequence in zip(images, numbers, strict=True)}
    by_hash = {row.hash: row for row in last}
    passed: set[LockedRow] = set()
    for names, values in _batches(list(by_hash)):
        # The undo of another step may be on its way: it has marked its images, and this waits for its end.
        lock = "" if sql.dialect == "sqlite" else " FOR UPDATE"
        later = await sql.all(_SELECT_LATER.format(names=names) + lock, values)
        for other in later:
            row = by_hash[other["row_hash"]]
            key = EntryKey(other["saga_id"], other["step"], other["generation"])
            if (
                row in passed
                or key == entry_key
                or other["row_change"] <= number[row]
                or owner_id(key.saga_id) != owner_id(entry_key.saga_id)
            ):
                continue
            passed.add(row)
            before = first[row]
            await sql.run(
                _SET_BEFORE,
                {
                    "saga_id": key.saga_id,
                    "step": key.entry,
                    "generation": key.generation,
                    "sequence": other["sequence"],
                    "before_image": None if before is None else encode_json(dict(before)).decode(),
                },
            )
    return [image for image in images if image.row not in passed]


_SELECT_LATER = """
SELECT i.saga_id, i.step, i.generation, i.sequence, i.row_hash, i.row_change FROM saga_image i
WHERE i.row_hash IN ({names}) AND i.undone = 0 AND NOT EXISTS (
  SELECT 1 FROM saga_guard g
  WHERE g.saga_id = i.saga_id AND g.step = i.step AND g.generation = i.generation AND g.op = 'undo')
ORDER BY i.row_change"""
_SET_BEFORE = (
    "UPDATE saga_image SET before_image = :before_image"
    " WHERE saga_id = :saga_id AND step = :step AND generation = :generation AND sequence = :sequence"
)


def _batches(hashes: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Names of parameters for a list of SQL, with their values."""
    distinct = sorted(set(hashes))
    for start in range(0, len(distinct), _BATCH):
        values = {f"hash{index}": hash for index, hash in enumerate(distinct[start : start + _BATCH])}
        yield ", ".join(f":{name}" for name in values), values
