"""The headers of a record, some of which cannot be read: reading one of those raises, reading the others works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sagas.errors import UsageError
from sagas.expressions.values import UnusableValue


class UnreadableHeader(UsageError):
    """A header without one certain text has been read; the message says why it has none."""


class PartlyReadableHeaders(Mapping[str, str | None]):
    """Headers by name; null is None. ``problems`` are the reasons why some of them have no certain text.

    Raises UnreadableHeader where such a header is read: by its name, or with all others.
    """

    def __init__(self, texts: Mapping[str, str | None], problems: Mapping[str, str]) -> None:
        self.readable = {name: text for name, text in texts.items() if name not in problems}
        self.problems = dict(problems)

    def __getitem__(self, name: str) -> str | None:
        if name in self.problems:
            raise UnreadableHeader(self.problems[name])
        return self.readable[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.readable
        yield from self.problems

    def __len__(self) -> int:
        return len(self.readable) + len(self.problems)

    def __contains__(self, name: object) -> bool:
        return name in self.readable or name in self.problems


def readable_headers(headers: Mapping[str, str | None]) -> dict[str, str | None]:
    """The headers without those that cannot be read."""
    return dict(headers.readable if isinstance(headers, PartlyReadableHeaders) else headers)


def expression_headers(headers: Mapping[str, str | None]) -> dict[str, str | UnusableValue | None]:
    """The headers for an expression, which fails if it reads one that cannot be read."""
    unusable = headers.problems if isinstance(headers, PartlyReadableHeaders) else {}
    return {**readable_headers(headers), **{name: UnusableValue(problem) for name, problem in unusable.items()}}
