"""Messages of libraries during a command are printed in the form of our own."""

from __future__ import annotations

import subprocess
import sys

_COMMAND = """
import asyncio, gc, logging, sys, warnings
from saga_cli import main
from saga_cli.context import set_global_options, split_options

def during(words, only):
    set_global_options(split_options(words)[0])
    logging.getLogger("temporalio").warning("[TMPRL1103] Attempted to upload payloads: %s", {"size": 600_000})
    logging.getLogger("some.library").warning("it is slow")
    logging.getLogger("some.library").info("it is fast")
    warnings.warn("an old file")
    async def leave():
        failed = asyncio.get_running_loop().create_future()
        failed.set_exception(ValueError("nobody reads this"))
        del failed
        gc.collect()
    asyncio.run(leave())
    return 0

main._run = during
main.main()
"""


def printed(*options: str) -> str:
    done = subprocess.run([sys.executable, "-c", _COMMAND, *options], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr


def test_a_record_of_a_library_is_one_line() -> None:
    first, second, third = printed().splitlines()
    assert first == "warning: some.library: it is slow"
    assert second == "warning: UserWarning: an old file"
    assert third == "warning: asyncio: Future exception was never retrieved: ValueError: nobody reads this"


def test_debug_shows_all_of_it() -> None:
    shown = printed("--debug")
    assert "warning: temporalio: [TMPRL1103] Attempted" in shown
    assert "\nValueError: nobody reads this" in shown
