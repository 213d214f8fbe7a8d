"""Spark's settings as a file: on a command line everybody on the machine could read the secrets among them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path


def properties_file(conf: Mapping[str, str]) -> Path:
    """A new file that only its owner can read, in the runner's scratch folder; spark-submit takes it as
    ``--properties-file``."""
    descriptor, name = tempfile.mkstemp(
        prefix="spark-", suffix=".conf", dir=os.environ.get("SAGA_SPARK_SCRATCH") or None
    )
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.writelines(f"{_escaped(key, key=True)}={_escaped(value)}\n" for key, value in conf.items())
    return Path(name)


def _escaped(text: str, *, key: bool = False) -> str:
    """As java.util.Properties reads it."""
    for plain, written in (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")):
        text = text.replace(plain, written)
    if key:
        for sign in "=: #!":
            text = text.replace(sign, f"\\{sign}")
    return f"\\{text}" if text.startswith((" ", "#", "!")) and not key else text
