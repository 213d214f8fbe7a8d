"""The declared types of columns when images were taken: a migration may come between two changes of one entry.

The row 0 of an entry has those of its own step in ``before_image``, by table. Images that came later, from the undo of
another entry or from the `confirm` of the step, may have others: these are in ``after_image``, by sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from saga_activities.automatic.table_shape import DeclaredType
from saga_activities.guard.sql_session import Row
from sagas.text.exact_json import decode_json, encode_json

TableTypes = Mapping[str, Mapping[str, DeclaredType]]
"""The declared type of each column, by table."""


@dataclass(slots=True)
class ImageTypes:
    """The types of the columns of one entry's images."""

    by_table: dict[str, Mapping[str, DeclaredType]]
    by_sequence: dict[str, Mapping[str, DeclaredType]] = field(default_factory=dict[str, Mapping[str, DeclaredType]])

    @staticmethod
    def of_header(header: Row) -> ImageTypes:
        return ImageTypes(decode_json(header["before_image"]), decode_json(header["after_image"] or "{}"))

    def of(self, image: Mapping[str, Any]) -> Mapping[str, DeclaredType]:
        """The types of the columns of a stored image."""
        return self.by_sequence.get(str(image["sequence"])) or self.by_table[image["table_name"]]

    def add(self, image: Mapping[str, Any], types: Mapping[str, DeclaredType]) -> None:
        """Note the types of an image that is added to the entry."""
        if self.by_table.setdefault(image["table_name"], types) != types:
            self.by_sequence[str(image["sequence"])] = types

    @property
    def columns(self) -> dict[str, str | None]:
        """The columns of the row 0 that hold the types."""
        others = encode_json(self.by_sequence).decode() if self.by_sequence else None
        return {"before_image": encode_json(self.by_table).decode(), "after_image": others}
