"""Images of the rows that a step has changed: each change of a row, by statement, and what all of them amount to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from saga_activities.automatic.row_locks import LockedRow
from saga_activities.automatic.table_access import Image
from sagas.sql_text.row_changes import ChangeKind
from sagas.text.exact_json import decode_json, encode_json


@dataclass(frozen=True, slots=True)
class RowImage:
    """A change of a row by the ``statement`` with this number, from 1.

    ``before`` is None if it was inserted; ``after`` is None if it was deleted. ``change`` orders the changes of a row
    by all steps.
    """

    row: LockedRow
    before: Image | None
    after: Image | None
    statement: int = 1
    change: int = 0

    @property
    def undone_change(self) -> ChangeKind:
        if self.before is None:
            return "insert"
        return "delete" if self.after is None else "update"

    @property
    def changed_columns(self) -> tuple[str, ...]:
        """The columns whose value an update has changed."""
        return tuple(differing(self.before, self.after)) if self.before and self.after else ()


def differing(wanted: Image, present: Image) -> dict[str, str | None]:
    """The columns of ``wanted`` whose value is another one in ``present``, or missing there."""
    return {name: text for name, text in wanted.items() if name not in present or present[name] != text}


Images = Mapping[LockedRow, Image | None]


def net_images(images: Sequence[RowImage]) -> tuple[Images, Images]:
    """Each row before the first and after the last of its changes."""
    first: dict[LockedRow, Image | None] = {}
    last: dict[LockedRow, Image | None] = {}
    for image in sorted(images, key=lambda image: image.change):
        first.setdefault(image.row, image.before)
        last[image.row] = image.after
    return first, last


def encoded_image(image: Image | None) -> str | None:
    """The text of an image in ``saga_image``; None for no row."""
    return None if image is None else encode_json(dict(image)).decode()


def decoded_image(text: str | None) -> Image | None:
    """The image that :func:`encoded_image` has written."""
    return None if text is None else decode_json(text)
