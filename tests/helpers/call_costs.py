"""CPU and peak memory of one call, measured in a process that has done nothing else.

The process of the tests has memory that earlier ones have left free, so its peak grows only by what exceeds these.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.forked_commands import FORK_SERVER
from tests.helpers.quiet_cpu import quiet_seconds
from tests.helpers.waiting import LIMIT


@dataclass(frozen=True)
class CallCost:
    """``result``: what the call returned, or its exception; ``seconds``: of CPU, as on a quiet machine."""

    result: Any
    seconds: float
    mib: float


def cost_of(call: Callable[..., object], *arguments: object) -> CallCost:
    """The cost of a module-level function with these arguments, the lowest of up to three tries within 2 seconds.

    Between two tries the others that share the cores may do less.
    """
    costs: list[CallCost] = []
    while not costs or (min(cost.seconds for cost in costs) > 2 and len(costs) < 3):
        costs.append(_measured(call, arguments))
    return min(costs, key=lambda cost: cost.seconds)


def _measured(call: Callable[..., object], arguments: tuple[object, ...]) -> CallCost:
    receiving, sending = FORK_SERVER.Pipe(duplex=False)
    process = FORK_SERVER.Process(target=_measure, args=(sending, call, arguments), daemon=True)
    process.start()
    sending.close()
    try:
        assert receiving.poll(LIMIT), f"the call has not ended within {LIMIT} seconds"
        return receiving.recv()
    finally:
        process.kill()
        process.join()
        receiving.close()


def _measure(sending: Any, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before, began = _memory("VmRSS"), time.process_time()
    try:
        result: object = call(*arguments)
    except Exception as error:  # noqa: BLE001 - it is the result
        result = error
    seconds = time.process_time() - began
    mib = _memory("VmHWM") - before
    sending.send(CallCost(result, quiet_seconds(seconds), mib))


def _memory(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024
