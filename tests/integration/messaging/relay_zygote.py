"""Starts relays at once: a process that has imported everything, and forks a relay for each line it reads.

`python relay_zygote.py PROJECT [--forgetful]`: answers each line with the process id of a new relay. ``--forgetful``
relays ignore the progress record when they start: what the protocol would be without it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from sagas.settings import load_settings
from workers.logs import configure_logs
from workers.relay.progress import Progress
from workers.relay.publisher import Publisher
from workers.relay.run import run_relay


class Forgetful(Publisher):
    """Opens as it should, and then does not know what was published last."""

    def open(self) -> Progress:
        return Progress(super().open().batch, ())


def main(project: str, *options: str) -> None:
    if "--forgetful" in options:
        import workers.relay.shard

        workers.relay.shard.Publisher = Forgetful
    settings = load_settings(Path(project))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes the dead away
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            configure_logs("text")
            asyncio.run(run_relay(settings))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
