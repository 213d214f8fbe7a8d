"""The order in which the steps of one saga have changed a row, and which of them are undone.

Steps that run at the same time (branches, items of a `for_each`, nested sagas) change a row in an order that only the
database decides: each holds the row until it commits. So the changes of a row are numbered in the transaction of the
change, and an undo leaves a row that was changed later to the undo of that change: it passes its images on to it. They
stay images with their own state from after the change, so whatever undoes the later change, the row is restored
from them only if it is in that state then, and it is known when something else has changed it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from saga_activities.automatic.image_types import ImageTypes, TableTypes
from saga_activities.automatic.row_image import RowImage
from saga_activities.automatic.row_locks import LockedRow
from saga_activities.automatic.stored_images import insert_images, select_images, update_image
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import Row, SqlSession
from sagas.errors import RowLocked
from sagas.portions import in_portions
from sagas.protocol import undo_scopes
from sagas.protocol.locks import owner_id
from sagas.sql_text.row_changes import NotImageable
from sagas.text.exact_json import encode_json

_PORTION = 500

_MYSQL = ("mysql", "mariadb")


async def number_changes(sql: SqlSession, saga_id: str, images: Sequence[dict[str, Any]]) -> dict[str, list[Row]]:
    """Set ``row_change`` of the images of a step, whose rows are locked by this transaction.

    Returns the earlier changes by the hash of their row. Only the changes of one root saga are compared. A popular row
    has images of thousands of others, which are final.
    """
    last: dict[str, int] = {}
    earlier: dict[str, list[Row]] = {}
    # A snapshot may be older than the change of a step that this transaction has waited for; a locking read never is.
    lock = " LOCK IN SHARE MODE" if sql.dialect in _MYSQL else ""
    for names, values in portions([image["row_hash"] for image in images]):
        statement = f"{_SELECT_LAST.format(names=names)}{lock}"
        for row in await sql.all(statement, {**values, **_root(saga_id)}):
            last[row["row_hash"]] = max(row["row_change"], last.get(row["row_hash"], 0))
            earlier.setdefault(row["row_hash"], []).append(row)
    for image in images:
        last[image["row_hash"]] = image["row_change"] = last.get(image["row_hash"], 0) + 1
    return earlier


def check_scope(undo_scope: str, label: str, earlier: Sequence[Row]) -> None:
    """Check that a step in ``undo_scope`` may change a row after the ``earlier`` changes of its root saga.

    Raises :class:`RowLocked` as long as a nested saga that changed it may be undone alone, :class:`NotImageable` if an
    undo could not restore the row exactly. ``label`` names the row.
    """
    for change in sorted(earlier, key=lambda row: row["row_change"], reverse=True):
        if change["undone"]:
            continue
        changed = f"{label} has been changed by {change['step']} of the saga {change['saga_id']}"
        match undo_scopes.conflict(change["undo_scope"], undo_scope):
            case "wait":
                raise RowLocked(label, change["saga_id"], change["created_at"])
            case "replaced":
                raise NotImageable(
                    f"{changed}, and a `compensate` of a nested saga replaces the undo that restores its rows: change"
                    " the row either inside or outside of that nested saga"
                )
            case "elsewhere":
                raise NotImageable(
                    f"{changed}, and the `compensate.confirmed` of this step uses another connection, so its undo"
                    " could not restore the row for that one"
                )
            case None:
                pass


async def end_scope(engine: AsyncEngine, owner: str, scope: str) -> None:
    """Let the changes of a nested saga that has completed belong to the undo scope around it."""
    values = {"owner": owner, "scopes": f"{scope}%"}
    async with engine.connect() as connection:
        entries = (await connection.execute(sa.text(_SELECT_SCOPES), values)).all()
        for *key, stored_scope in entries:
            await connection.execute(
                sa.text(f"UPDATE saga_image SET undo_scope = :scope WHERE {_ENTRY}"),
                {**EntryKey(*key).values, "scope": undo_scopes.after_end(stored_scope, scope)},
            )


def images_digest(stored: Sequence[Mapping[str, Any]]) -> str:
    """The state of the images of an entry: another one as soon as something is passed on to them."""
    images = [[row["sequence"], row["row_hash"], row["before_image"]] for row in stored]
    return hashlib.sha256(encode_json(images)).hexdigest()


async def mark_undone(sql: SqlSession, entry_key: EntryKey) -> None:
    """Mark the images of an entry whose undo begins or is skipped, so that no other undo passes anything on to them."""
    await sql.run(f"UPDATE saga_image SET undone = 1 WHERE {_ENTRY}", entry_key.values)


@dataclass(frozen=True, slots=True)
class Reliance:
    """The other entries that the undo of an entry may rely on, because they are certain to be undone after it.

    ``undone_steps``: only these steps of the same saga are undone, behind a savepoint; None: the whole root saga is.
    """

    entry_key: EntryKey
    undo_scope: str
    undone_steps: Collection[str] | None

    def covers(self, other: EntryKey, undo_scope: str) -> bool:
        """False in another scope: a `compensate` of the parent may run there instead, or that saga may stay."""
        if undo_scope != self.undo_scope or owner_id(other.saga_id) != owner_id(self.entry_key.saga_id):
            return False
        if self.undone_steps is None:
            return True
        return other.saga_id == self.entry_key.saga_id and other.entry.partition("#")[0] in self.undone_steps


@dataclass(frozen=True, slots=True)
class PassedOn:
    """The places of the images that other entries, ``heirs``, have now, and the rows that an entry which may stay has
    changed.

    ``built_upon``: after the last image of the row, with the image after that change. ``blocked``: between two of them.
    """

    places: frozenset[int]
    heirs: Sequence[EntryKey]
    built_upon: Mapping[LockedRow, str | None]
    blocked: frozenset[LockedRow]


PresentImage = Callable[[Row, str], Awaitable[str | None]]
"""An image of another entry, ``before_image`` or ``after_image``, with values as the columns hold them now."""


async def pass_on(
    sql: SqlSession,
    reliance: Reliance,
    images: Sequence[RowImage],
    stored: Sequence[Row],
    types: TableTypes,
    present_image: PresentImage,
) -> PassedOn:
    """Give the images of the rows that other entries have changed later to these entries, whose undos restore them.

    ``stored`` are the stored images with present values, ``types`` the present ones of the columns of their tables. An
    image goes to the next later change, as another entry may have changed the row between two images of this one.
    """
    places: dict[str, list[int]] = {}
    for place, row in sorted(enumerate(stored), key=lambda item: item[1]["row_change"]):
        places.setdefault(row["row_hash"], []).append(place)
    heirs: dict[EntryKey, list[int]] = {}
    built_upon: dict[LockedRow, str | None] = {}
    blocked: set[LockedRow] = set()
    for hash, others in (await _later_changes(sql, reliance.entry_key, list(places))).items():
        row, last = images[places[hash][0]].row, stored[places[hash][-1]]["row_change"]
        for other, group in _below(others, [(stored[place]["row_change"], place) for place in places[hash]]):
            is_certain = reliance.covers(entry_of(other), other["undo_scope"])
            # Otherwise something else has changed the row between the two, and its change must not be lost.
            if is_certain and await present_image(other, "before_image") == stored[group[-1]]["after_image"]:
                heirs.setdefault(entry_of(other), []).extend(group)
            elif other["row_change"] < last:
                blocked.add(row)
        for other in others:
            if other["row_change"] > last and not reliance.covers(entry_of(other), other["undo_scope"]):
                built_upon[row] = await present_image(other, "after_image")
    for heir, group in heirs.items():
        await inherit(sql, heir, [stored[place] for place in sorted(group)], types)
    places_given = frozenset(place for group in heirs.values() for place in group)
    return PassedOn(places_given, list(heirs), built_upon, frozenset(blocked))


async def _later_changes(sql: SqlSession, entry_key: EntryKey, hashes: Sequence[str]) -> dict[str, list[Row]]:
    """The changes of other entries of rows that are still to be undone, by the hash of the row, in their order."""
    changes: dict[str, list[Row]] = {}
    for names, values in portions(hashes):
        # The undo of another step may be on its way: it has marked its images, and this waits for its end.
        statement = _SELECT_LATER.format(names=names) + locking(sql)
        rows = await select_images(sql, statement, {**values, **_root(entry_key.saga_id)})
        for row in rows:
            if entry_of(row) != entry_key:
                changes.setdefault(row["row_hash"], []).append(row)
    return changes


def _below(others: Sequence[Row], own: Sequence[tuple[int, int]]) -> Iterator[tuple[Row, list[int]]]:
    """Each change of another entry with the places of the own ones, given with their numbers, that are next below."""
    lowest = 0
    for other in others:
        group = [place for change, place in own if lowest <= change < other["row_change"]]
        lowest = other["row_change"]
        if group:
            yield other, group


def entry_of(row: Row) -> EntryKey:
    """The entry of a stored image."""
    return EntryKey(row["saga_id"], row["step"], row["generation"])


async def is_undone_by_statement(sql: SqlSession, key: EntryKey, sequence: int) -> bool:
    """True for the own image of a confirmed entry: its undo does not restore it."""
    return sequence > 0 and bool(await sql.all(_SELECT_CONFIRM, key.values))


@dataclass(slots=True)
class ChainedChange:
    """A change of a row that is still to be undone, with its images as JSON.

    ``before`` and ``after`` may be set: a statement of the saga can leave the row otherwise than its image says.
    ``has_present_types``: the columns have the same types now as when it was made.
    """

    key: EntryKey
    sequence: int
    undo_scope: str
    before: str | None
    after: str | None
    stored: tuple[str | None, str | None]
    has_present_types: bool = True

    def is_own(self, entry_key: EntryKey) -> bool:
        """False also for images that other undos have passed on to the entry."""
        return self.key == entry_key and self.sequence > 0


async def image_chains(
    sql: SqlSession, entry_key: EntryKey, hashes: Sequence[str], types: TableTypes
) -> dict[str, list[ChainedChange]]:
    """The changes of rows that are still to be undone, by the hash of the row, in their order; also those of the entry
    itself, whose undo has begun. ``types`` are those of the columns now.
    """
    types_of: dict[EntryKey, ImageTypes] = {}
    rows: list[Row] = []
    for names, values in portions(hashes):
        statement = _SELECT_CHAIN.format(names=names) + locking(sql)
        rows += await select_images(sql, statement, {**values, **_root(entry_key.saga_id)})
    chains: dict[str, list[ChainedChange]] = {}
    for row in sorted(rows, key=lambda row: (row["row_change"], row["sequence"])):
        key = entry_of(row)
        if key == entry_key or (row["undone"] == 0 and row["op"] is None):
            states = (row["before_image"], row["after_image"])
            if key not in types_of:
                types_of[key] = await types_of_entry(sql, key)
            is_present = types_of[key].of(row) == types[row["table_name"]]
            change = ChainedChange(key, row["sequence"], row["undo_scope"], *states, states, is_present)
            chains.setdefault(row["row_hash"], []).append(change)
    return chains


async def replace_images(sql: SqlSession, chain: Sequence[ChainedChange]) -> None:
    """Store the images that were set."""
    for change in chain:
        if (change.before, change.after) != change.stored:
            place = {**change.key.values, "sequence": change.sequence}
            await update_image(sql, place, change.before, change.after)


async def append_images(
    sql: SqlSession, entry_key: EntryKey, images: Sequence[dict[str, Any]], types: TableTypes
) -> None:
    """Add changes to the images of an entry; ``types`` are those of the columns now."""
    if not images:
        return
    values = entry_key.values
    header = await sql.one(f"SELECT * FROM saga_image WHERE {_ENTRY} AND sequence = 0", values)
    last = await sql.one(
        f"SELECT MAX(sequence) AS sequence, MAX(statement) AS statement FROM saga_image WHERE {_ENTRY}", values
    )
    await number_changes(sql, entry_key.saga_id, images)
    shared = {**values, "created_at": header["created_at"], "undo_scope": header["undo_scope"]}
    shared["statement"] = last["statement"] + 1
    rows = [{**image, **shared, "sequence": last["sequence"] + at} for at, image in enumerate(images, 1)]
    await _note(sql, header, rows, types)
    await insert_images(sql, rows)


async def pass_on_to_the_last(
    sql: SqlSession, reliance: Reliance, stored: Sequence[Row], types: TableTypes
) -> EntryKey | None:
    """Give images that something keeps from being restored to the entry that is probably undone last; None: to none.

    What is in the way may be rows of any entry that is still to be undone: they refer to the rows, or have their unique
    values.
    """
    root = _root(reliance.entry_key.saga_id)
    headers = await sql.all(_SELECT_OPEN + locking(sql), root)
    first = {row["row_hash"]: row["row_change"] for row in reversed(stored)}
    last = {row["row_hash"]: row["row_change"] for row in stored}
    earlier: set[EntryKey] = set()
    later: set[EntryKey] = set()
    for names, hashes in portions(list(first)):
        for row in await sql.all(_SELECT_CHANGES.format(names=names), {**hashes, **root}):
            key = entry_of(row)
            if row["row_change"] < last[row["row_hash"]]:
                earlier.add(key)
            if row["row_change"] > first[row["row_hash"]]:
                later.add(key)
    for row in headers:
        key = entry_of(row)
        if key == reliance.entry_key or not reliance.covers(key, row["undo_scope"]):
            continue
        if key not in earlier:
            await inherit(sql, key, stored, types)
            return key
        if key not in later and not await sql.all(_SELECT_CONFIRM, key.values):
            await inherit(sql, key, stored, types, later=True)
            return key
    return None


async def inherit(
    sql: SqlSession, heir: EntryKey, stored: Sequence[Row], types: TableTypes, *, later: bool = False
) -> None:
    """Give images to another entry, as if its step had made these changes before its own ones, or ``later``.

    Their sequence is below 0, and the numbers of their statements are those before or after the ones of the heir; in
    any case before those of later changes of the same rows.
    """
    values = heir.values
    header = await sql.one(f"SELECT * FROM saga_image WHERE {_ENTRY} AND sequence = 0", values)
    bounds = await sql.one(
        "SELECT MIN(sequence) AS sequence, MIN(statement) AS first, MAX(statement) AS last"
        f" FROM saga_image WHERE {_ENTRY}",
        values,
    )
    numbers = [row["statement"] for row in stored]
    changes = {row["row_hash"]: row["row_change"] for row in stored}
    own = await sql.all(
        f"SELECT statement, row_hash, row_change FROM saga_image WHERE {_ENTRY} AND sequence <> 0", values
    )
    after = [row["statement"] for row in own if row["row_change"] > changes.get(row["row_hash"], row["row_change"])]
    begin = min(after, default=bounds["last"] + 1 if later else bounds["first"])
    shift = max(numbers) - min(numbers) + 1
    await sql.run(
        f"UPDATE saga_image SET statement = statement + :shift WHERE {_ENTRY} AND sequence <> 0"
        " AND statement >= :begin",
        {**values, "shift": shift, "begin": begin},
    )
    statement = begin - min(numbers)
    sequence = bounds["sequence"] - len(stored)
    shared = {**values, "created_at": header["created_at"], "undo_scope": header["undo_scope"]}
    rows = [
        {**row, **shared, "sequence": sequence + at, "statement": statement + row["statement"]}
        for at, row in enumerate(stored)
    ]
    await _note(sql, header, rows, types)
    await insert_images(sql, rows)


async def _note(sql: SqlSession, header: Row, rows: Sequence[Mapping[str, Any]], types: TableTypes) -> None:
    """Add to the number of images in the row 0 of an entry, and to the types of columns there."""
    own = ImageTypes.of_header(header)
    for row in rows:
        own.add(row, types[row["table_name"]])
    await sql.run(
        "UPDATE saga_image SET row_key = :row_key, before_image = :before_image, after_image = :after_image"
        f" WHERE {_ENTRY} AND sequence = 0",
        {**entry_of(header).values, "row_key": str(int(header["row_key"]) + len(rows)), **own.columns},
    )


async def types_of_entry(sql: SqlSession, key: EntryKey) -> ImageTypes:
    """The types of the columns of the images of an entry."""
    return ImageTypes.of_header(await sql.one(f"SELECT * FROM saga_image WHERE {_ENTRY} AND sequence = 0", key.values))


_ENTRY = "saga_id = :saga_id AND step = :step AND generation = :generation"

_SELECT_CONFIRM = f"SELECT 1 AS n FROM saga_guard WHERE {_ENTRY} AND op = 'confirm' AND reason = 'confirm'"

STILL_TO_UNDO = """LEFT JOIN saga_guard g
  ON g.saga_id = i.saga_id AND g.step = i.step AND g.generation = i.generation AND g.op = 'undo'
WHERE i.undone = 0 AND g.op IS NULL"""
"""The join and the condition for images ``i`` of entries that are not undone."""

_OF_ROOT = "(i.saga_id = :saga_id OR substr(i.saga_id, 1, :length) = :nested)"

_SELECT_LATER = f"""
SELECT i.saga_id, i.step, i.generation, i.sequence, i.table_name, i.row_hash, i.row_change, i.undo_scope,
  i.before_image, i.after_image
FROM saga_image i {STILL_TO_UNDO} AND i.row_hash IN ({{names}}) AND {_OF_ROOT} ORDER BY i.row_change"""

_SELECT_OPEN = f"""
SELECT i.saga_id, i.step, i.generation, i.undo_scope FROM saga_image i {STILL_TO_UNDO} AND i.sequence = 0 AND {_OF_ROOT}
ORDER BY i.created_at, i.saga_id, i.step"""

_SELECT_CHANGES = f"""
SELECT i.saga_id, i.step, i.generation, i.row_hash, i.row_change FROM saga_image i
WHERE i.row_hash IN ({{names}}) AND {_OF_ROOT}"""

_SELECT_CHAIN = f"""
SELECT i.saga_id, i.step, i.generation, i.sequence, i.table_name, i.row_hash, i.row_change, i.undo_scope,
  i.before_image, i.after_image, i.undone, g.op
FROM saga_image i LEFT JOIN saga_guard g
  ON g.saga_id = i.saga_id AND g.step = i.step AND g.generation = i.generation AND g.op = 'undo'
WHERE i.row_hash IN ({{names}}) AND i.sequence <> 0 AND {_OF_ROOT}"""

_SELECT_SCOPES = """
SELECT DISTINCT saga_id, step, generation, undo_scope FROM saga_image
WHERE row_hash IN (SELECT row_hash FROM saga_row_lock WHERE saga_id = :owner) AND undo_scope LIKE :scopes"""

_SELECT_LAST = f"""
SELECT i.saga_id, i.step, i.row_hash, i.row_change, i.undo_scope, i.undone, i.created_at
FROM saga_image i WHERE i.row_hash IN ({{names}}) AND {_OF_ROOT}"""


def _root(saga_id: str) -> dict[str, Any]:
    """The parameters of ``_OF_ROOT``: the root of a saga and all that are nested in it."""
    root = owner_id(saga_id)
    return {"saga_id": root, "length": len(root) + 1, "nested": f"{root}/"}


def locking(sql: SqlSession) -> str:
    return {"sqlite": "", "postgresql": " FOR UPDATE OF i"}.get(sql.dialect, " FOR UPDATE")


def portions(hashes: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Names of parameters for a list of SQL, with their values."""
    for portion in in_portions(sorted(set(hashes)), _PORTION):
        values = {f"hash{index}": hash for index, hash in enumerate(portion)}
        yield ", ".join(f":{name}" for name in values), values
