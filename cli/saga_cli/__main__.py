"""The script `saga`: until its command line is read, Ctrl-C ends the process without a traceback."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Import and run :func:`saga_cli.main.main`, which takes care of Ctrl-C from then on."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell's background ignores it
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # INTERRUPTED of exit_codes.py
    from saga_cli.main import main

    main()


if __name__ == "__main__":
    main()
