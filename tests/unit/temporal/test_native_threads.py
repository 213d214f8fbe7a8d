"""The end of a program while a thread that Python has not started is in Python, as those of Temporal's core are."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, threading, time
from saga_workers.temporal.native_threads import await_native_threads_at_exit

entered = threading.Event()

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def deliver(argument):
    entered.set()
    time.sleep(1)
    print("delivered", flush=True)

await_native_threads_at_exit()
thread = ctypes.c_ulong()
ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, deliver, None)
entered.wait()
"""


def test_a_program_ends_after_the_thread_has_left_python() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "delivered\n", "")
