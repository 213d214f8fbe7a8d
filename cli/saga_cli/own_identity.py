"""The identity of a command's Temporal client, which decisions have as their author unless they are told one."""

from __future__ import annotations

import getpass
import os
import socket


def own_identity() -> str:
    """The user and the machine, as ``anna@desk``: unlike the SDK's default, it is the same in the next command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"
