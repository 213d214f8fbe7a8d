"""Order per key, parallel across keys, never more at once than allowed."""

from __future__ import annotations

import asyncio
import random

from saga_workers.runtime.keyed_executor import KeyedExecutor

Item = tuple[str, int]


async def test_order_per_key_and_bounded_concurrency() -> None:
    seen: dict[str, list[int]] = {}
    at_once = [0, 0]
    choose = random.Random(3)

    async def work(item: Item) -> None:
        at_once[0] += 1
        at_once[1] = max(at_once)
        await asyncio.sleep(choose.random() / 200)
        seen.setdefault(item[0], []).append(item[1])
        at_once[0] -= 1

    lanes: KeyedExecutor[Item] = KeyedExecutor(work, 4)
    for number in range(200):
        lane = choose.choice("abcdefgh")
        lanes.submit(lane, (lane, number))
    assert lanes.pending == 200
    await lanes.wait_idle()
    assert lanes.pending == 0
    assert at_once[1] == 4
    assert sum(map(len, seen.values())) == 200
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_queued_items_can_be_dropped_and_running_ones_finish() -> None:
    go, seen = asyncio.Event(), []

    async def work(item: Item) -> None:
        await go.wait()
        seen.append(item)

    lanes: KeyedExecutor[Item] = KeyedExecutor(work, 2)
    for number in range(3):
        lanes.submit("a", ("a", number))
        lanes.submit("b", ("b", number))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lanes.discard(lambda item: item[0] == "a")
    await lanes.wait_ended(lambda item: item[0] == "a", 0.01)  # patience passes while it runs
    waiting = asyncio.create_task(lanes.wait_ended(lambda item: item[0] == "a", 10))
    await asyncio.sleep(0)
    assert not waiting.done()
    go.set()
    await waiting
    await lanes.wait_idle()
    assert [task for task in seen if task[0] == "a"] == [("a", 0)]
    assert [task for task in seen if task[0] == "b"] == [("b", 0), ("b", 1), ("b", 2)]
    lanes.submit("a", ("a", 9))
    await lanes.wait_idle()
    assert seen[-1] == ("a", 9)
