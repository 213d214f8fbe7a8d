"""Threads with one connection each: `python -m benchmarks.peers.no_engine.threads URL`."""

from __future__ import annotations

import sys
import threading

import psycopg

from benchmarks.no_engine import THREADS, Payment, run_saga
from benchmarks.peers.program import serve_in_threads


def main(url: str) -> None:
    own = threading.local()

    def run(id: str, payment: Payment) -> bool:
        if not hasattr(own, "connection"):
            own.connection = psycopg.connect(url, autocommit=True)
        return run_saga(own.connection, id, payment)

    serve_in_threads(run, THREADS)


if __name__ == "__main__":
    main(*sys.argv[1:])
