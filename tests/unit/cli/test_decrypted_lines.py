"""`saga decrypt` reads text of any length, line by line, but no line of any length."""

from __future__ import annotations

import io

import pytest

from saga_activities import input_limits
from saga_cli.commands.operate.decrypt import bounded_lines
from sagas.errors import UsageError


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_limits, "MAX_DECRYPTED_LINE", 10)
    lines = bounded_lines(io.BytesIO(b"a\n" + b"b" * 9 + b"\n" + b"c" * 11), "letters.txt")
    assert [next(lines), next(lines)] == [b"a\n", b"b" * 9 + b"\n"]
    with pytest.raises(UsageError, match=r"letters\.txt has a line of more than 10 bytes"):
        next(lines)
