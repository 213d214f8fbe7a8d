"""Text in results of MySQL and MariaDB, read in the character set that its column has.

A server that converts results puts `?` in place of a character that the set of the connection lacks, without a warning.
So it sends them as they are, and converts what is not in UTF-8 in a second request, which shows each loss.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from saga_activities.result_columns import UnusableColumn, not_utf8

ENCODING = "saga_utf8"
"""UTF-8 in which bytes that are none stay what they are, as halves of surrogate pairs, and no result is unreadable."""

UNCONVERTED_RESULTS = "character_set_results = NULL"

_UTF8 = ("utf8", "utf8mb3", "utf8mb4")
_LIKE_ASCII = (*_UTF8, "ascii", "latin1")
"""Sets in which the first 128 codes are those of ASCII, and which the server uses for its own texts."""
_BINARY = 63
_TEXT_TYPES = (15, 245, 247, 248, 249, 250, 251, 252, 253, 254)
_PORTION = 1 << 20
"""Bytes that are converted at once."""


def _search(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    return codecs.CodecInfo(codecs.utf_8_encode, lambda data, _="strict": codecs.utf_8_decode(data, _KEPT, True))


_KEPT = "surrogateescape"
codecs.register(_search)


async def decoded_rows(connection: Any, result: Any) -> Sequence[Sequence[Any]]:
    """The rows of a result with the texts that its columns have.

    Raises :class:`UnusableColumn` if the text of a value is not known, or would not be stored as the same bytes again.
    """
    rows = result.rows
    for at, field in enumerate(result.fields):
        if field.type_code not in _TEXT_TYPES or field.charsetnr == _BINARY:
            continue
        values: set[str] = {row[at] for row in rows if row[at] is not None}
        charset = await _charset(connection, result, field.charsetnr) if values else "utf8mb4"
        if charset in _LIKE_ASCII and all(value.isascii() for value in values):
            continue
        if charset in _UTF8:
            _check_utf8(field.name, values)
            continue
        if result.has_next:
            raise UnusableColumn(f"a procedure returns the column {field.name} in {charset}: convert it to utf8mb4")
        texts = await _converted(connection, field.name, charset, sorted(values))
        rows = [(*row[:at], row[at] if row[at] is None else texts[row[at]], *row[at + 1 :]) for row in rows]
    return rows


def _check_utf8(name: str, values: set[str]) -> None:
    if not all(map(_is_utf8, values)):
        raise not_utf8(name)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a byte that was none, or half a surrogate pair
        return False
    return True


async def _charset(connection: Any, result: Any, collation: int) -> str:
    """The character set of a collation; of one that the driver does not know, the server is asked once."""
    from asyncmy.charset import charset_by_id

    names = connection.__dict__.setdefault("saga_charsets", {})
    if collation not in names:
        with suppress(KeyError):
            names[collation] = charset_by_id(collation).name
    # MariaDB has the collations of several sets, such as uca1400_ai_ci, in the second table only.
    for table in ("collations", "collation_character_set_applicability"):
        if collation not in names and not result.has_next:
            text = f"SELECT character_set_name FROM information_schema.{table} WHERE id = {collation}"
            for row in await _query(connection, text):
                names[collation] = row[0]
    if collation not in names:
        raise UnusableColumn(f"the result of a procedure has the collation {collation}: convert its texts to utf8mb4")
    return names[collation]


async def _converted(connection: Any, name: str, charset: str, values: Sequence[str]) -> Mapping[str, str]:
    """Each value as the text that it is. Raises :class:`UnusableColumn` if it would not become the same bytes again."""
    texts: dict[str, str] = {}
    for portion in _portions([value.encode(errors=_KEPT) for value in values]):
        source = " UNION ALL ".join(
            f"SELECT {at} AS n, CONVERT(x'{data.hex()}' USING {charset}) AS t" for at, data in enumerate(portion)
        )
        text = "CONVERT(t USING utf8mb4)"
        same = f"CAST(CONVERT({text} USING {charset}) AS BINARY) = CAST(t AS BINARY)"
        for at, converted, is_same in await _query(connection, f"SELECT n, {text}, {same} FROM ({source}) AS v"):
            if not is_same or not _is_utf8(converted):
                raise UnusableColumn(
                    f"the column {name} has a code of the character set {charset} that no Unicode character becomes"
                    f" again (in x'{portion[at].hex()[:80]}'): correct the row, or read the bytes with"
                    f" `hex({name}) as {name}` and write them with `convert(unhex(:{name}) using {charset})`",
                    column=name,
                )
            texts[portion[at].decode(errors=_KEPT)] = converted
    return texts


def _portions(values: Sequence[bytes]) -> Iterator[list[bytes]]:
    portion: list[bytes] = []
    size = 0
    for value in values:
        if portion and size + len(value) > _PORTION:
            yield portion
            portion, size = [], 0
        portion.append(value)
        size += len(value) + 50
    yield portion


async def _query(connection: Any, text: str) -> Sequence[Sequence[Any]]:
    await connection.query(text)
    return connection._result.rows
