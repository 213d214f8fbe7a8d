"""The text columns of ``saga_enqueued``, which programs of others have written.

SQLite takes any value in any column: bytes, as some JSON libraries give them, and text that is not UTF-8, at which its
driver raises an error that has the whole text. So there the columns are read as bytes.
"""

from __future__ import annotations


class NotText(ValueError):
    """A column has bytes that are not UTF-8."""


def column_sql(expression: str, dialect: str) -> str:
    """The expression for a column that :func:`column_text` reads."""
    return f"CAST({expression} AS BLOB)" if dialect == "sqlite" else expression


def key_sql(expression: str, dialect: str) -> str:
    """The expression for a text that only has to be equal where the columns are."""
    return f"hex(CAST({expression} AS BLOB))" if dialect == "sqlite" else expression


def column_text(value: str | bytes | None) -> str | None:
    """The text of a column. Raises NotText."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise NotText from None


def shown_text(value: str | bytes | None) -> str | None:
    """The text of a column for people, with U+FFFD for what is not UTF-8."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
