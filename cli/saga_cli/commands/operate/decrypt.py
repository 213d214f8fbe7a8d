"""`saga decrypt`: the values that the project has encrypted, in clear."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from saga_cli.context import load_settings
from saga_cli.exit_codes import DONE, FAILED
from saga_cli.output import print_document, wants_json, warn
from sagas.errors import UsageError
from sagas.text.bounded_files import short_path
from sagas.text.shortening import counted

if TYPE_CHECKING:
    from collections.abc import Iterator


def decrypt(
    file: Annotated[Path | None, typer.Argument(help="the text to read; default: standard input")] = None,
) -> int:
    """Print a text with the values in clear that the project has encrypted: dead letters, or rows of the engine's
    tables. All else in it stays as it is.

    Needs the key of [codec]. Exit code 1: another key has encrypted some of them.
    """
    from saga_activities.encrypted_passages import decrypt_passages
    from saga_activities.value_cipher import ValueCipher
    from sagas.settings.codec import load_codec_keys

    settings = load_settings()
    keys = load_codec_keys(settings.codec.key, settings.root)
    if not keys:
        raise UsageError("the project has no key to decrypt with", help="set [codec] key in saga.toml")
    cipher, unread, lines = ValueCipher(keys), 0, []
    for line in _lines(file):
        clear, missing = decrypt_passages(cipher, line)
        unread += missing
        text = clear.decode(errors="replace")
        if wants_json():
            lines.append(text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()
    if wants_json():
        print_document({"text": "".join(lines), "unread": unread}, human=lambda: None)
    if unread:
        warn(f"{counted(unread, 'value')} can be read with none of the keys of [codec]")
    return FAILED if unread else DONE


def _lines(file: Path | None) -> Iterator[bytes]:
    """Line by line: what is piped here may go on for long."""
    if file is None:
        yield from bounded_lines(sys.stdin.buffer, "standard input")
        return
    try:
        with file.open("rb") as opened:
            yield from bounded_lines(opened, short_path(file))
    except OSError as error:
        raise UsageError(f"{short_path(file)} cannot be read: {error.strerror}") from error


def bounded_lines(text: IO[bytes], name: str) -> Iterator[bytes]:
    """The lines. Raises UsageError for one that is longer than any text that the engine has encrypted."""
    from saga_activities.input_limits import MAX_DECRYPTED_LINE

    while line := text.readline(MAX_DECRYPTED_LINE + 1):
        if len(line) > MAX_DECRYPTED_LINE:
            raise UsageError(
                f"{name} has a line of more than {MAX_DECRYPTED_LINE:,} bytes",
                help="decrypt its parts: a dead letter, or the row of a table, is shorter",
            )
        yield line
