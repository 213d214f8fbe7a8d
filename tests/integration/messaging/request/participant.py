"""An example participant: a process that depends only on confluent-kafka and the message format.

    python participant.py BROKER FOLDER GROUP COMMANDS...

It keeps what it did in FOLDER/participant.db: ``commands`` (every message, in order), ``answers`` (its replies by
key) and ``effects``. How it behaves is in the value of the command, under ``do`` or ``undo`` or ``confirm``:

    done, reject   answers so
    silent         never answers
    held           does it at once, and answers when a file FOLDER/go-<saga id> is there
    twice          answers twice
    garbled        answers with something that is not JSON, then done
    strangers      answers first under a key that nobody has asked, then done
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

broker, folder, group, *topics = sys.argv[1:]
database = sqlite3.connect(Path(folder) / "participant.db", isolation_level=None)
database.executescript(
    """
    pragma journal_mode = wal;
    create table if not exists commands (key text, op text, undoes text, saga text, value text);
    create table if not exists answers (key text primary key, outcome text, value text);
    create table if not exists undone (key text primary key);
    create table if not exists effects (key text primary key);
    """
)
producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True, "linger.ms": 1})
held: list[tuple[dict[str, str], str]] = []
stopped: list[int] = []


def reply(headers: dict[str, str], outcome: str, value: object, *, raw: bytes | None = None) -> None:
    echoed = {name: headers[name] for name in ("sagakey", "sagatoken") if name in headers}
    producer.produce(
        headers["sagareplyto"],
        raw if raw is not None else json.dumps(value).encode(),
        key=headers["sagakey"],
        headers={**echoed, "sagaoutcome": outcome, "content-type": "application/json"},
    )


def answer(headers: dict[str, str], how: str) -> tuple[str, object]:
    """The outcome and output for a command, decided once: the effect and the answer are one transaction."""
    key, op = headers["sagakey"], headers["sagaop"]
    stored = database.execute("select outcome, value from answers where key = ?", (key,)).fetchone()
    if stored is not None and (op == "do" or stored[0] == "done"):
        return stored[0], json.loads(stored[1])
    outcome, value = "done", {"id": key, "op": op}
    database.execute("begin immediate")
    if op == "do" and database.execute("select 1 from undone where key = ?", (key,)).fetchone():
        outcome, value = "rejected", {"reason": "it has been undone already"}
    elif how == "reject":
        outcome, value = "rejected", {"reason": f"no {op} today", "details": {"op": op}}
    elif op == "do":
        database.execute("insert into effects values (?)", (key,))
    elif op == "undo":
        database.execute("insert or ignore into undone values (?)", (headers["sagaundoes"],))
        database.execute("delete from effects where key = ?", (headers["sagaundoes"],))
    database.execute("insert or replace into answers values (?, ?, ?)", (key, outcome, json.dumps(value)))
    database.execute("commit")
    return outcome, value


def take(headers: dict[str, str], value: dict[str, str]) -> None:
    how = value.get(headers["sagaop"], "done")
    if how == "silent":
        return
    outcome, output = answer(headers, how)
    if how == "held":
        held.append((headers, outcome))
        return
    if how == "garbled":
        reply(headers, outcome, None, raw=b"{what is this")
    if how == "strangers":
        reply({**headers, "sagakey": "nobody/asked"}, outcome, output)
    reply(headers, outcome, output)
    if how == "twice":
        reply(headers, outcome, output)


def let_go() -> None:
    for command in list(held):
        headers, _ = command
        if (Path(folder) / f"go-{headers['sagaid']}").exists():
            held.remove(command)
            reply(headers, *answer(headers, "done"))


signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
consumer = Consumer(
    {
        "bootstrap.servers": broker,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
)
consumer.subscribe(topics)
(Path(folder) / "ready").touch()
while not stopped:
    message: Any = consumer.poll(0.02)
    let_go()
    if message is None or message.error() is not None:
        continue
    headers = {name: text.decode() for name, text in message.headers()}
    database.execute(
        "insert into commands values (?, ?, ?, ?, ?)",
        (
            headers["sagakey"],
            headers["sagaop"],
            headers.get("sagaundoes"),
            headers["sagaid"],
            message.value().decode(),
        ),
    )
    take(headers, json.loads(message.value()))
    producer.flush()
    consumer.commit(message=message, asynchronous=False)
consumer.close()
