"""Secrets: values in environment variables or files, read only when they are needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sagas.errors import UsageError
from sagas.input_limits import MAX_SECRET_BYTES
from sagas.settings.masking import remember_secret, remember_url
from sagas.settings.wrong_setting import WrongSetting
from sagas.text.shell import shell_command


@dataclass(frozen=True, slots=True)
class Secret:
    """A reference to a secret. ``location`` is a variable's name, or a file relative to the project folder."""

    source: Literal["env", "file"]
    location: str


def resolve_secret(value: str | Secret | Mapping[str, Any], *, setting: str, root: Path) -> str:
    """The value of a setting that may be a secret; ``setting`` is its dotted name, for error messages.

    Raises:
        UsageError: the variable is not set, or the file cannot be read.
    """
    if isinstance(value, str):
        return value
    secret = value if isinstance(value, Secret) else parse_secret(value, setting)
    if secret.source == "env":
        text = os.environ.get(secret.location)
        if text is None:
            raise UsageError(
                f"{setting} reads the environment variable {secret.location}, which is not set",
                help=shell_command("export", f"{secret.location}=") + "…",
            )
        return _remembered(text)
    path = root / Path(secret.location).expanduser()
    try:
        # Editors and `echo` end a file with a line feed that is not part of the secret.
        with path.open("rb") as file:
            content = file.read(MAX_SECRET_BYTES + 1)
        if len(content) > MAX_SECRET_BYTES:
            raise UsageError(f"{setting} reads the file {path}, which is larger than {MAX_SECRET_BYTES} bytes")
        return _remembered(content.decode().rstrip("\r\n"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"{setting} reads the file {path}, which failed: {reason}") from error


def _remembered(text: str) -> str:
    """Return the text unchanged; the secrets in it are masked from now on. A secret URL has public parts."""
    remember_url(text) if "://" in text else remember_secret(text)
    return text


def parse_secret(value: Mapping[str, Any], setting: str) -> Secret:
    """Parse ``{env = "X"}`` or ``{file = "…"}``.

    Raises:
        WrongSetting: the table has another form.
    """
    if len(value) == 1:
        [(source, where)] = value.items()
        if source in ("env", "file") and isinstance(where, str) and where:
            return Secret(source, where)
    raise WrongSetting(setting, 'must be a string, {env = "NAME"} or {file = "path"}')
