"""Files and folders that only their owner can read, whatever the umask: they quote data, or are copies of it.

What other programs read, such as the files of a warehouse, is not made here and keeps the modes of the umask.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter.

    One that exists elsewhere than in the project's ``.saga`` keeps its mode, which somebody has chosen.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if ".saga" in folder.parts:
        folder.chmod(0o700)


def open_private_log(path: Path) -> BinaryIO:
    """Open a file for appending, with mode 0600 also if it exists.

    Follows no symbolic link, which somebody who may write to the folder could point at another file. Raises OSError.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return os.fdopen(descriptor, "ab")


def write_private_text(path: Path, text: str) -> None:
    """Write a file that only its owner can read, and replace an older one. No link is followed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
