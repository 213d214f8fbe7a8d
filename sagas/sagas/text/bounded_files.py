"""Reads files whose names users write: a named pipe, a device or a huge file must not hang a command."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from sagas.input_limits import MAX_FILE_BYTES

_OPEN_STREAMS = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def read_bounded(path: Path, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """The content of a file, or of a stream that the shell has opened for this command (`<(…)`, `/dev/stdin`).

    Raises:
        OSError: it cannot be read, is not a file, or is larger; ``strerror`` says why.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        if path.is_symlink():
            raise OSError(error.errno, f"it is a symbolic link to {path.readlink()}, which does not exist") from None
        raise
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(_OPEN_STREAMS)):
        raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes")
    return content


def short_path(path: Path | str) -> str:
    """The path as a message quotes it: a very long one without its middle."""
    text = os.fspath(path)
    return text if len(text) <= 300 else f"{text[:100]}…{text[-100:]}"
