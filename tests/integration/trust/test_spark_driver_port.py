"""The driver of a local Spark refuses foreign connections before it reads Java objects from them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# A call as Netty's transport of Spark frames it: its length, the type RpcRequest, an id, the length of the body. The
# body names an endpoint, and then has an object in Java's serialization, here a broken one.
PROGRAM = """
import json, socket, struct, sys
from pathlib import Path
from saga_spark.runner.spark_session import ClassicSessions
from saga_spark.settings import SparkSettings

sessions = ClassicSessions(SparkSettings(root=Path(sys.argv[1]), master="local[1]", conf=json.loads(sys.argv[2])))
session = sessions.open("port")
assert session.range(1000).repartition(4).count() == 1000
port = int(session.sparkContext.getConf().get("spark.driver.port"))

def text(value):
    return struct.pack(">H", len(value)) + value

body = b"\\0\\1" + text(b"127.0.0.1") + struct.pack(">i", port) + text(b"endpoint-verifier") + b"\\xac\\xed\\0\\5broken"
head = struct.pack(">bqi", 3, 7, len(body))
with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
    connection.sendall(struct.pack(">q", 8 + len(head) + len(body)) + head + body)
    answer = b""
    try:
        while len(answer) < 200 and (part := connection.recv(65536)):
            answer += part
    except OSError:
        pass
print("ANSWER", repr(answer), "UI", sessions.spark_ui)
sessions.close(30)
"""


def answer(tmp_path: Path, conf: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), conf], capture_output=True, text=True, timeout=200, check=False
    )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")] or [done.stderr[-3000:]]
    return line


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_foreign_connection_is_refused(tmp_path: Path) -> None:
    line = answer(tmp_path, "{}")
    assert line.startswith("ANSWER"), line
    assert "StreamCorrupted" not in line, "the driver has read an object of a stranger"
    assert line.endswith("UI None")
