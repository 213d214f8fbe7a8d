"""Files that are read as a project: as in git, only one's own, root's, and those that are trusted explicitly.

Settings name code that runs and databases that are written, and saga.toml is searched for upwards: a user who can put
one into a folder above would otherwise run code as the user who enters a command below.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from sagas.errors import UsageError
from sagas.text.shell import shell_command

TRUST_VARIABLE = "SAGA_TRUST_PROJECT"


def require_own(path: Path, env: Mapping[str, str] = os.environ) -> None:
    """Raises UsageError if the file, or the link to it, belongs to another user and is below no trusted folder.

    Root's files are everybody's to run. Root itself also trusts the user who called it with sudo. Nothing is checked
    where the system does not know owners, or where the file does not exist.
    """
    if not hasattr(os, "geteuid"):
        return
    own = {0, os.geteuid()}
    if os.geteuid() == 0 and env.get("SUDO_UID", "").isdecimal():
        own.add(int(env["SUDO_UID"]))
    try:
        owners = {path.lstat().st_uid, path.stat().st_uid}
    except OSError:
        return
    if owners <= own or any(path.resolve().is_relative_to(folder) for folder in trusted_folders(env)):
        return
    raise UsageError(
        f"{path} belongs to another user (uid {min(owners - own)}), whose settings and code would run as you",
        help="if you trust it: "
        + shell_command("export", f"{TRUST_VARIABLE}={path if path.is_dir() else path.parent}"),
    )


def trusted_folders(env: Mapping[str, str]) -> list[Path]:
    """The folders named by the variable, absolute, separated as in PATH."""
    return [Path(name).resolve() for name in env.get(TRUST_VARIABLE, "").split(os.pathsep) if Path(name).is_absolute()]


def require_own_modules(names: Iterable[str], root: Path) -> None:
    """The folder, which is on the path of all imports, and the files of the modules. Raises UsageError."""
    for name in names:
        require_own(root)
        if name.endswith(".py"):
            require_own(root / name)
            continue
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            module = root.joinpath(*parts[:length])
            for file in (module, module / "__init__.py", module.with_name(f"{module.name}.py")):
                require_own(file)


def writable_by_others(path: Path) -> bool:
    """True if users other than the owner may change the file, or put others into the folder."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IWOTH and not mode & stat.S_ISVTX) or bool(mode & stat.S_IWGRP)
