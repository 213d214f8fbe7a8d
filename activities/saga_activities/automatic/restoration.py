"""The undo of `compensate: auto`: restores rows from their images, or changes nothing and says who changed them.

All rows are locked and compared first, and all are restored in one transaction. A row that already is as it was before
the step counts as restored, so a person can repair a row by hand and retry. After the restoration each row is read
again, and anything but the image from before rolls everything back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from saga_activities.automatic import row_locks
from saga_activities.automatic.changed_back import changed_before, pass_on_to_others
from saga_activities.automatic.changed_rows import (
    StepRows,
    cannot_restore,
    changed_since,
    unrestored_rows,
)
from saga_activities.automatic.column_types import converted_texts
from saga_activities.automatic.image_types import ImageTypes
from saga_activities.automatic.restore_order import CannotRestore, read_rows, restore_rows
from saga_activities.automatic.row_changes import (
    PresentImage,
    Reliance,
    entry_of,
    images_digest,
    mark_undone,
    pass_on,
    pass_on_to_the_last,
    types_of_entry,
)
from saga_activities.automatic.row_image import Images, RowImage, decoded_image, differing, encoded_image, net_images
from saga_activities.automatic.row_locks import locked_row
from saga_activities.automatic.stored_images import select_images
from saga_activities.automatic.table_access import Key, TableAccess, shape_of_table
from saga_activities.automatic.table_shape import DeclaredType, check_change
from saga_activities.automatic.unread_rows import shows_images, unread_rows
from saga_activities.guard.entry_key import EntryKey
from saga_activities.guard.sql_session import Row, SqlSession
from sagas.errors import InfrastructureError, NeedsOperator, RowLocked
from sagas.protocol.saga_view import IMAGES_MISSING
from sagas.sql_text.row_changes import NotImageable, RowChange
from sagas.text.exact_json import canonical_json, decode_json

_SELECT_IMAGES = (
    "SELECT saga_id, step, generation, sequence, statement, row_hash, row_change, undo_scope, table_name,"
    " row_key, before_image, after_image"
    " FROM saga_image WHERE saga_id = :saga_id AND step = :step AND generation = :generation"
    " ORDER BY statement, sequence"
)


async def restore(
    sql: SqlSession, entry_key: EntryKey, undone_steps: Collection[str] | None = None, *, inherited: bool = False
) -> dict[str, Any]:
    """Restore the rows of an entry; returns their number as ``restored``, and ``left_to``, the entries whose undos
    restore the others, if there are any.

    ``undone_steps``: only these steps of the saga are undone, so no row is left to another one; None if the root saga
    is. ``inherited``: only what other undos have passed on to this one, after something else has undone the step
    itself. Raises :class:`NeedsOperator`, and nothing is changed, if a row has changed since or cannot be restored;
    :class:`InfrastructureError` if a row belongs to another saga, until that one is final.
    """
    await mark_undone(sql, entry_key)
    types, stored = await load_images(sql, entry_key)
    stored = [row for row in stored if row["sequence"] < 0] if inherited else stored
    if not stored:
        return {"restored": 0}
    try:
        tables, images = await open_tables(sql, types, stored)
    except NeedsOperator as error:
        advice = "change the table back, then retry; or restore the rows by hand as they were before, then decide done"
        raise NeedsOperator(f"{error.why}; {advice}", **unread_rows(sql.dialect, [(types, stored)])) from error
    await _lock_rows(sql, entry_key, images)
    reliance = Reliance(entry_key, stored[0]["undo_scope"], undone_steps)
    digest, loaded = images_digest(stored), stored
    stored = _as_present(stored, images, types, tables)
    present_types = {name: table.shape.types for name, table in tables.items()}
    present_image = _present_image(sql, tables)
    try:
        passed = await pass_on(sql, reliance, images, stored, present_types, present_image)
    except NotImageable as error:
        raise _cannot_read(sql, error, types, loaded) from error
    images = [image for place, image in enumerate(images) if place not in passed.places]
    stored = [row for place, row in enumerate(stored) if place not in passed.places]
    first, last = net_images(images)
    try:
        current = await present_rows(tables, last)
    except CannotRestore as error:
        raise NeedsOperator(error.why, **unread_rows(sql.dialect, [(types, loaded)])) from error
    # A row that is as before this step is restored, unless it is so by a later step, whose undo would change it again.
    built_upon = frozenset(row for row, image in passed.built_upon.items() if current.get(row) == decoded_image(image))
    in_doubt = built_upon | passed.blocked
    states = {row: (first[row], last[row], current[row]) for row in last if row not in in_doubt}
    try:
        by_others = await pass_on_to_others(sql, entry_key, states, stored, present_types, present_image)
    except NotImageable as error:
        raise _cannot_read(sql, error, types, loaded) from error
    images = [image for image in images if image.row not in by_others.given]
    first, last = net_images(images)
    rows = StepRows(tables, first, last, current, digest, images, in_doubt | by_others.blocked)
    if rows.changed_rows:
        raise await changed_since(sql, entry_key, rows)
    open_rows = rows.open_rows
    try:
        await restore_rows(sql, tables, images, open_rows)
    except CannotRestore as error:
        hashes = {row.hash for row in open_rows}
        waiting = [row for row in stored if row["row_hash"] in hashes]
        heir = await pass_on_to_the_last(sql, reliance, waiting, present_types) if error.may_heal else None
        if heir is not None:
            return _restored(0, entry_key, [*passed.heirs, heir])
        raise await cannot_restore(sql, entry_key, rows, error.why) from error
    return _restored(len(open_rows), entry_key, passed.heirs)


def _cannot_read(sql: SqlSession, error: NotImageable, types: ImageTypes, loaded: Sequence[Row]) -> NeedsOperator:
    why = f"a row cannot be restored automatically any more: {error.why}"
    return NeedsOperator(why, **unread_rows(sql.dialect, [(types, loaded)]))


async def keep_rows(sql: SqlSession, entry_key: EntryKey) -> None:
    """Lock the rows of an entry whose undo is parked: a saga that has ended, and is undone later, has none any more.

    Raises :class:`InfrastructureError` if a row belongs to another saga, until that one is final.
    """
    types, stored = await load_images(sql, entry_key)
    _, images = await open_tables(sql, types, stored)
    await _lock_rows(sql, entry_key, images)


async def _lock_rows(sql: SqlSession, entry_key: EntryKey, images: Sequence[RowImage]) -> None:
    """Lock the rows of an entry, but for those that belong to a saga whose undo waits for this one, because it has
    changed them before this entry, and has ended in between.
    """
    rows = list({image.row: None for image in images})
    passed: dict[str, Collection[str]] = {}
    while True:
        try:
            return await row_locks.acquire(sql, rows, entry_key, passed)
        except RowLocked as error:
            holder = error.details["owner"]
            if holder not in passed and (earlier := await changed_before(sql, entry_key, holder)):
                passed[holder] = earlier
                continue
            raise InfrastructureError(f"{error}, so it cannot be restored yet", details=error.details) from error


def _restored(rows: int, entry_key: EntryKey, heirs: Sequence[EntryKey]) -> dict[str, Any]:
    names = {heir.entry if heir.saga_id == entry_key.saga_id else f"{heir.saga_id}/{heir.entry}" for heir in heirs}
    return {"restored": rows, **({"left_to": sorted(names)} if names else {})}


async def check_decision(sql: SqlSession, *, entry_key: EntryKey, digest: str | None, inherited: bool = False) -> None:
    """Check that an operator has decided about the images that the database has now, and mark them as undone.

    ``digest`` is that of the images that the operator has seen. ``inherited``: the step was confirmed, so only what
    other undos have passed on to it counts. Raises :class:`NeedsOperator` with the present rows if they are not as
    before, and the decision was about other images, or none.
    """
    await mark_undone(sql, entry_key)
    loaded: list[tuple[ImageTypes, list[Row]]] = []
    stored: list[Row] = []
    try:
        types, stored = await load_images(sql, entry_key)
        stored = [row for row in stored if row["sequence"] < 0] if inherited else stored
        loaded.append((types, stored))
        if not stored or images_digest(stored) == digest:
            return
        rows = await step_rows(sql, loaded)
    except (NeedsOperator, CannotRestore) as error:
        if shows_images(digest, stored):
            return
        why = f"the rows of the step cannot be compared: {error.why}; look at them, then decide again"
        raise NeedsOperator(why, **unread_rows(sql.dialect, loaded)) from error
    if rows.open_rows:
        why = "rows are not as before the step, or another undo of the saga has left more to this one"
        refused = await cannot_restore(sql, entry_key, rows, f"{why}: look at the rows, then decide again")
        raise refused


async def skip_restoration(sql: SqlSession, entry_key: EntryKey) -> dict[str, Any] | None:
    """Leave the rows of an entry as they are, also those that other undos have left to this one.

    Returns the rows that are not as before the step, as :class:`NeedsOperator` of :func:`restore` describes them, or
    all if they cannot be read; None if their images are missing.
    """
    await mark_undone(sql, entry_key)
    try:
        loaded = [await load_images(sql, entry_key)]
    except NeedsOperator:
        return None
    try:
        rows = await step_rows(sql, loaded)
    except (NeedsOperator, CannotRestore):
        return unread_rows(sql.dialect, loaded)
    return await unrestored_rows(sql, entry_key, rows)


async def load_images(sql: SqlSession, entry_key: EntryKey) -> tuple[ImageTypes, list[Row]]:
    """The types of the columns when the step ran, and the stored images in the order of the changes."""
    # A locking read, which sees what other undos have passed on, whatever the isolation level.
    lock = " FOR UPDATE" if sql.dialect in ("mysql", "mariadb") else ""
    rows = await select_images(sql, _SELECT_IMAGES + lock, entry_key.values)
    header = next((row for row in rows if row["sequence"] == 0), None)
    if header is None or int(header["row_key"]) != len(rows) - 1:
        raise NeedsOperator(IMAGES_MISSING)
    return ImageTypes.of_header(header), [row for row in rows if row is not header]


async def step_rows(sql: SqlSession, loaded: Sequence[tuple[ImageTypes, Sequence[Row]]]) -> StepRows:
    """The rows of one step, or of all steps of a nested saga, locked: before and after it, and as they are now.

    ``loaded``: the images of each entry with the types of the columns when it ran. Raises :class:`NeedsOperator` and
    :class:`CannotRestore` if rows cannot be read.
    """
    tables: dict[str, TableAccess] = {}
    images: list[RowImage] = []
    for types, stored in loaded:
        opened, own = await open_tables(sql, types, stored)
        for name, table in opened.items():
            table.has_other_keys |= name in tables and tables[name].has_other_keys
        tables |= opened
        images += own
    if len(loaded) > 1:
        images.sort(key=lambda image: image.change)
    first, last = net_images(images)
    digest = images_digest([row for _, stored in loaded for row in stored])
    return StepRows(tables, first, last, await present_rows(tables, last), digest, images)


async def present_rows(tables: Mapping[str, TableAccess], last: Images) -> Images:
    """Lock and read the rows of ``last``, which has their images from after the step; None for a row that is gone.

    Raises :class:`CannotRestore` also if a row is not found by a key whose type has changed: it may have another value.
    """
    current = await read_rows(tables, last)
    for row, image in last.items():
        if image is not None and current[row] is None and tables[row.table].has_other_keys:
            raise CannotRestore(
                row.label,
                "no row has this key, whose type a migration has changed since the step ran, so it may have another"
                " key now; look for it, restore it by hand if it is there, then decide done",
            )
    return current


async def open_tables(
    sql: SqlSession, types: ImageTypes, stored: Sequence[Row]
) -> tuple[dict[str, TableAccess], list[RowImage]]:
    """The tables of the stored images by name, as they are now, and the images, decoded. Raises NotImageable if a
    migration has changed the primary key of a table since.
    """
    tables: dict[str, TableAccess] = {}
    images = []
    try:
        for row in stored:
            name = row["table_name"]
            if name not in tables:
                tables[name] = TableAccess(sql, await shape_of_table(sql, name))
            shape = tables[name].shape
            key = decode_json(row["row_key"])
            if tuple(key) != shape.key:
                now = ", ".join(shape.key) or "none"
                raise NotImageable(
                    f"the primary key of {shape.name} was {', '.join(key)} when the step ran, and is {now} now"
                )
            before, after = decoded_image(row["before_image"]), decoded_image(row["after_image"])
            image = RowImage(
                locked_row(tables[name], Key(row["row_hash"], tuple(key.values()))),
                before,
                after,
                row["statement"],
                row["row_change"],
            )
            _check_table(tables[name], image)
            images.append(image)
        groups: dict[tuple[str, str], list[int]] = {}
        for place, row in enumerate(stored):
            groups.setdefault((row["table_name"], canonical_json(types.of(row))), []).append(place)
        for (name, _), places in groups.items():
            own = [images[place] for place in places]
            converted = await _with_present_types(sql, tables[name], types.of(stored[places[0]]), own)
            for place, image in zip(places, converted, strict=True):
                images[place] = image
    except NotImageable as error:
        raise NeedsOperator(f"a row cannot be restored automatically any more: {error.why}") from error
    return tables, images


async def _with_present_types(
    sql: SqlSession, table: TableAccess, types: Mapping[str, DeclaredType], own: Sequence[RowImage]
) -> list[RowImage]:
    """The images with values as the columns hold them now. Raises :class:`NotImageable` if they cannot."""
    shape = table.shape
    table.has_other_keys |= any(not column.has_type(types[column.name]) for column in shape.key_columns)
    values = [values for image in own for values in (image.before, image.after) if values is not None]
    keys = [dict(zip(shape.key, image.row.key.texts, strict=True)) for image in own]
    restored = [differing(image.before, image.after or {}) for image in own if image.before is not None]
    changed = await converted_texts(sql, shape, types, [*values, *keys], restored)
    if not changed:
        return list(own)

    result = []
    for image in own:
        texts = _converted(dict(zip(shape.key, image.row.key.texts, strict=True)), changed)
        before, after = (row and _converted(row, changed) for row in (image.before, image.after))
        row = locked_row(table, Key(image.row.hash, tuple(texts.values())))
        result.append(RowImage(row, before, after, image.statement, image.change))
    return result


def _converted(values: Mapping[str, Any], changed: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """The values with the texts of :func:`converted_texts`."""
    return {
        name: changed[name][text] if name in changed and text is not None else text for name, text in values.items()
    }


def _as_present(
    stored: Sequence[Row], images: Sequence[RowImage], types: ImageTypes, tables: Mapping[str, TableAccess]
) -> list[Row]:
    """The stored images with values as the columns hold them now, as those of ``images``."""
    return [
        row
        if types.of(row) == tables[row["table_name"]].shape.types
        else Row(
            {
                **row,
                "row_key": image.row.key_text,
                "before_image": encoded_image(image.before),
                "after_image": encoded_image(image.after),
            }
        )
        for row, image in zip(stored, images, strict=True)
    ]


def _present_image(sql: SqlSession, tables: Mapping[str, TableAccess]) -> PresentImage:
    """A function that reads an image of another entry. It raises :class:`NotImageable` if a value has another one."""
    types_of: dict[EntryKey, ImageTypes] = {}

    async def read(other: Row, name: str) -> str | None:
        key, shape = entry_of(other), tables[other["table_name"]].shape
        if key not in types_of:
            types_of[key] = await types_of_entry(sql, key)
        types, image = types_of[key].of(other), decoded_image(other[name])
        if image is None or types == shape.types:
            return other[name]
        changed = await converted_texts(sql, shape, types, [image])
        return encoded_image(_converted(image, changed))

    return read


def _check_table(table: TableAccess, image: RowImage) -> None:
    shape = table.shape
    then = set(image.after if image.after is not None else image.before or ())
    now = {column.name for column in shape.columns}
    if then != now:
        changes = {"without": then - now, "also": now - then}
        said = "; ".join(f"now {how} {', '.join(sorted(names))}" for how, names in changes.items() if names)
        raise NotImageable(f"{shape.name} has other columns than when the step ran: {said}")
    check_change(shape, RowChange(image.undone_change, "", columns=image.changed_columns))
