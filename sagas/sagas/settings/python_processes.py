"""Starts of Python: the folder in which somebody stands is never searched for modules.

`python -m` searches the working folder before the standard library, and a user who can put a `psutil.py` there would
run code as the user who enters a command there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from sagas.settings.trust import require_own_modules

SAFE_PATH: Mapping[str, str] = {"PYTHONSAFEPATH": "1"}
"""The environment of a program that starts Python itself, such as Spark for its Python workers."""

_RUN_OF_FOLDER = (
    "import runpy, sys; sys.path.append(sys.argv.pop(1));"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def python_command(module: str, *words: str) -> list[str]:
    """The command that runs an installed module with this Python."""
    return [sys.executable, "-P", "-m", module, *words]


def python_command_of(folder: Path, module: str, *words: str) -> list[str]:
    """The command that runs a module of a folder, which is searched last. Raises UsageError if others own either."""
    require_own_modules([module], folder)
    return [sys.executable, "-P", "-c", _RUN_OF_FOLDER, str(folder), module, *words]


def with_script_folder(script: Path) -> dict[str, str]:
    """``PYTHONPATH`` with the folder of a script, where Python searches for modules without SAFE_PATH."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(script.parent), os.environ.get("PYTHONPATH", "")]))}
