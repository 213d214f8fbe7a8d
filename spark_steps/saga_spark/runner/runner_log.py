"""The log of a runner: what it and its JVM print, without credentials and the sensitive values of its runs.

The JVM and Spark's Python workers know neither, so their output goes through the worker. Values are masked until the
runner ends, because Spark may log a task after its run.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from pathlib import Path

from sagas.settings.masking import mask
from sagas.settings.private_files import open_private_log
from sagas.text.masked_texts import TextMask

_CHUNK_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20
"""Longer lines are cut."""


class RunnerLog:
    """Writes to the file at ``path``. Raises OSError if it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = open_private_log(path)
        self._masked: dict[str, None] = {}

    def mask_from_now_on(self, texts: Iterable[str]) -> None:
        """Mask these texts in all that is written from now on."""
        self._masked.update(dict.fromkeys(texts))

    async def copy(self, output: asyncio.StreamReader) -> None:
        """Write the lines of this output until it ends. Goes on reading if the disk is full: the runner must not wait
        for its log.
        """
        with self._file:
            rest = b""
            while chunk := await output.read(_CHUNK_BYTES):
                lines, end, rest = (rest + chunk).rpartition(b"\n")
                if len(rest) > _MAX_LINE_BYTES:
                    lines, end, rest = lines + end, rest, b""
                await asyncio.to_thread(self._write, lines + end)
            self._write(rest)

    def _write(self, lines: bytes) -> None:
        text = lines.decode("utf-8", "replace")
        with contextlib.suppress(OSError):
            self._file.write(mask(TextMask(self._masked).text(text)).encode())
            self._file.flush()
