"""The cause that is picked from what a service has printed; the texts are those of real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from saga_workers.devstack.start_failure import cause

KAFKA = (Path(__file__).parent / "logs" / "kafka_full_disk.txt").read_text(encoding="utf-8")


STARTED = "2026-11-29T14:46:01.300Z INFO saga.trigger started with 1 triggers, 1 consumers, 0 bridges kafka=h:9\n"
ASSIGNED = "2026-11-29T14:46:02.004Z INFO saga.trigger partitions assigned group=saga-replies-1 topic=saga-replies\n"


def without_the_cause(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "No space left" not in line)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (KAFKA, "No space left on device"),
        # the innermost exception of the last error, without its stack
        (
            without_the_cause(KAFKA),
            "Error while writing the Quorum status from the file /shop/.saga/dev/kafka/data/__cluster_metadata-0/"
            "quorum-state",
        ),
        # the attempts that follow a lack of space fail of something else
        (
            f"{KAFKA}2026-11-22T11:12:46,063 ERROR Encountered fatal fault: caught exception (ProcessTerminating)\n"
            "java.lang.InternalError: a fault occurred in a recent unsafe memory access operation\n"
            "\tat kafka.Kafka.main(Kafka.scala)\n",
            "No space left on device",
        ),
        (
            "2026-11-22T11:12:46,063 ERROR Exiting Kafka due to fatal exception (Kafka$)\n"
            "org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:9092: Address in use.\n"
            "\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:737)\n"
            "Caused by: java.net.BindException: Address already in use\n"
            "\t... 14 more\n",
            "Address already in use",
        ),
        (
            "2026-11-22 11:14:13.375 UTC [1633] LOG:  starting PostgreSQL 18.6\n"
            '2026-11-22 11:14:13.375 UTC [1633] FATAL:  data directory "/x" has invalid permissions\n'
            "2026-11-22 11:14:13.375 UTC [1633] DETAIL:  Permissions should be u=rwx (0700).\n",
            'data directory "/x" has invalid permissions',
        ),
        (
            '2026-11-22 11:14:13.375 UTC [9] FATAL:  could not write to file "pg_wal/xlogtemp.9": No space left on '
            "device\nchild process exited with exit code 1\ninitdb: removing contents of data directory\n",
            'could not write to file "pg_wal/xlogtemp.9": No space left on device',
        ),
        (
            'Error: failed starting server: error creating namespace "default": database or disk is full (13)\n',
            'failed starting server: error creating namespace "default": database or disk is full (13)',
        ),
        (
            "error: the action file ./x.py was not found\nhelp: check `actions`\n",
            "the action file ./x.py was not found",
        ),
        ("Traceback (most recent call last):\n  File x\nImportError: no module\n", "ImportError: no module"),
        # a process of the project that a record has ended: no error, and a last line that says nothing about it
        (
            f"{STARTED}2026-11-29T14:46:01.310Z WARNING saga.trigger attempt 2 of 5 begins; the attempts before have"
            f" ended their process group=g record=enrolments/3/8\n{ASSIGNED}",
            "attempt 2 of 5 begins; the attempts before have ended their process group=g record=enrolments/3/8",
        ),
        (
            f"{STARTED}2026-11-29T14:46:01.310Z INFO saga.trigger attempt begins, of a record that may have ended the"
            f" last process group=g record=enrolments/3/8\n{ASSIGNED}",
            "attempt begins, of a record that may have ended the last process group=g record=enrolments/3/8",
        ),
        (f"{STARTED}{ASSIGNED}", "it ended without an error message"),
        (
            f"{STARTED}2026-11-29T14:46:01.310Z ERROR saga.trigger the port is taken\n{ASSIGNED}",
            "saga.trigger the port is taken",
        ),
        ("", "it printed nothing"),
    ],
    ids=lambda text: text[-40:],
)
def test_the_most_specific_message_is_chosen(output: str, message: str) -> None:
    assert cause(output) == message
