"""A listener for replies as a process of its own: `python -m tests.integration.messaging.listen PROJECT`."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from activities.connections import Connections
from sagas.project import Project
from sagas.settings import load_settings
from workers.replies.listener import ReplyListener
from workers.replies.topics import reply_topics
from workers.stopping import stop_on_signals
from workers.temporal_client import connect


async def main(folder: Path) -> None:
    project = Project(load_settings(folder))
    kafka = project.settings.kafka
    databases = Connections({"shop": {"kind": "sql", "url": project.settings.connection("shop").url}})
    topics = reply_topics(project.definitions, kafka.prefix)
    listener = ReplyListener(await connect(project.settings), kafka, databases, topics)
    await listener.start()
    await stop_on_signals().wait()
    await listener.stop()
    await databases.close()


logging.basicConfig(level=logging.INFO)
asyncio.run(main(Path(sys.argv[1])))
