"""The Java of this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from sagas.errors import UsageError


def check_java(what: str = "Spark") -> str:
    """The program that Spark starts, or whatever else needs it. Raises UsageError: there is no Java, so no ``what``."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else "java"
    found = shutil.which(program)
    if found is None:
        where = f"JAVA_HOME is {home}, and there is no bin/java in it" if home else "there is none on the PATH"
        raise UsageError(
            f"{what} needs Java 17 or newer: {where}", help="install a JDK (Debian: openjdk-17-jre-headless)"
        )
    return found


def identity(program: str) -> str:
    """The same as long as this Java is not replaced by another one."""
    found = Path(program).resolve()
    stat = found.stat()
    return f"{found} {stat.st_size} {stat.st_mtime_ns}"
