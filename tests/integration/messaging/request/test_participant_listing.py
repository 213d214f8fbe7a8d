"""The participant listing of the reference, run unchanged."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import sys
import uuid
from pathlib import Path

from tests.helpers.database_servers import DatabaseServer
from tests.helpers.kafka_broker import Broker
from tests.helpers.processes import Process, TemporalServer
from tests.helpers.waiting import until
from tests.integration.messaging.request.request_environment import open_environment

PAGE = Path(__file__).resolve().parents[4] / "docs/reference/message-formats.md"

TRIP = """
saga: trip
input: {type: object, properties: {nights: {type: integer}, go: {type: boolean, default: true}}}
steps:
  - id: reserve
    uses: kafka.request
    with: {topic: PREFIX-hotel, value: {nights: "${{ input.nights }}"}}
    compensate: kafka.request
  - {id: next, uses: require, with: {that: "${{ input.go }}"}}
output: "${{ steps.reserve.result }}"
"""


async def test_the_documented_participant_works(
    tmp_path: Path, temporal: TemporalServer, kafka: Broker, postgres_server: DatabaseServer
) -> None:
    async with open_environment(tmp_path / "project", temporal, kafka, postgres_server, TRIP) as env:
        [listing] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        script, database = tmp_path / "hotel.py", tmp_path / "hotel.db"
        script.write_text(listing, encoding="utf-8")
        topic = kafka.create_topic(f"{env.prefix}-hotel")
        argv = [sys.executable, "-P", str(script), kafka.address, topic, str(database)]
        hotel = Process("hotel", argv, tmp_path, database.exists, dict(os.environ)).start()

        def rooms() -> list[tuple[str, int]]:
            with contextlib.closing(sqlite3.connect(database)) as db:
                return db.execute("select booking, nights from rooms").fetchall()

        try:
            story = await env.run_saga("trip", nights=3)
            key = f"{story['id']}/reserve"
            assert (story["state"], story["output"]) == ("COMPLETED", {"booking": key})
            assert rooms() == [(key, 3)]

            story = await env.run_saga("trip", nights=31)
            assert (story["state"], story["reason"]["message"]) == ("COMPENSATED", "at most 30 nights")
            assert story["reason"]["details"] == {"asked": 31}

            story = await env.run_saga("trip", nights=5, go=False)
            assert story["state"] == "COMPENSATED"
            assert rooms() == [(key, 3)]

            # The undo overtakes its command, and both come twice.
            other = f"test-{uuid.uuid4()}/reserve"
            replies = f"{env.prefix}-elsewhere"
            kafka.create_topic(replies)
            undo = {"sagakey": f"{other}/undo", "sagaop": "undo", "sagaundoes": other, "sagareplyto": replies}
            do = {"sagakey": other, "sagaop": "do", "sagareplyto": replies}
            for headers in (undo, do, undo, do):
                kafka.produce(topic, {"nights": 1}, key=other, headers=headers)
            await until(lambda: len(kafka.read_committed(replies)) == 4)
            outcomes = [record.headers["sagaoutcome"] for record in kafka.read_committed(replies)]
            assert outcomes == ["done", "rejected", "done", "rejected"]
            assert rooms() == [(key, 3)]
        finally:
            hotel.kill()
