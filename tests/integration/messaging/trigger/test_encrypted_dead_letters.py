"""With `[codec] dead_letters` keys and values of dead letters are encrypted, and `saga decrypt` reads them."""

from __future__ import annotations

import secrets
from pathlib import Path

from sagas import Message, bridge, consumer
from tests.helpers.database_servers import DatabaseServer
from tests.helpers.forked_commands import run_command
from tests.helpers.kafka_broker import Broker
from tests.helpers.waiting import until_in_thread
from tests.integration.messaging.trigger.trigger_environment import fully_consumed, open_shop, project_of, triggering


async def test_dead_letters_of_consumers_and_bridges_are_encrypted(
    kafka: Broker, postgres_server: DatabaseServer, tmp_path: Path
) -> None:
    shop, key = await open_shop(postgres_server), secrets.token_hex(32)
    orders, clicks = kafka.create_topic(), kafka.create_topic()

    @consumer(orders, connection="shop", name=f"reads-{orders}", max_attempts=1)
    async def read(message: Message) -> None:
        raise ValueError("no such order")

    @bridge(clicks, to=orders, name=f"copies-{clicks}", max_attempts=1)
    def copy(message: Message) -> object:
        raise ValueError("no such click")

    settings = kafka.settings(outbox="shop").model_copy(update={"dead_letter_key": key, "root": tmp_path})
    project = project_of(tmp_path, settings, "127.0.0.1:1", readers=[read, copy], connections={"shop": shop.url})
    for topic in (orders, clicks):
        kafka.produce(topic, {"card": "kanari"}, key="kanari-key")
    async with triggering(project):
        for topic, name in ((orders, f"consumer-reads-{orders}"), (clicks, f"bridge-copies-{clicks}")):
            group = f"{settings.prefix}-{name}"
            await until_in_thread(lambda group=group, topic=topic: fully_consumed(kafka, group, topic))
    letters = [letter for topic in (orders, clicks) for letter in kafka.read_committed(f"{topic}.dlq")]
    assert [letter.headers["sagadlqreason"] for letter in letters] == [
        "ValueError: no such order",
        "ValueError: no such click",
    ]
    texts = [f"{letter.key}\t{letter.value.decode()}" for letter in letters]
    assert "kanari" not in str(texts)
    assert all(letter.headers["sagadlqencrypted"] in text for letter, text in zip(letters, texts, strict=True))

    (tmp_path / "saga.toml").write_text(f'[codec]\nkey = "{key}"\n', encoding="utf-8")
    (tmp_path / "letters.txt").write_text("\n".join(texts), encoding="utf-8")
    read_again = run_command(["decrypt", "letters.txt"], tmp_path)
    assert (read_again.returncode, read_again.stdout) == (0, "\n".join(['kanari-key\t{"card":"kanari"}'] * 2))
    (tmp_path / "saga.toml").write_text(f'[codec]\nkey = "{secrets.token_hex(32)}"\n', encoding="utf-8")
    unread = run_command(["decrypt", "letters.txt"], tmp_path)
    assert (unread.returncode, unread.stdout) == (1, "\n".join(texts))
    assert "4 values can be read with none of the keys of [codec]" in unread.stderr
