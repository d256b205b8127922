"""Memory that is free goes back to the system, whichever thread it was for."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import ctypes, sys, threading
from statebackend.backends.unused_memory import keep_together

keep_together()
library = ctypes.CDLL(None)
library.malloc.restype = library.fdopen.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
library.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
library.fflush.argtypes = [ctypes.c_void_p]

def work():
    for pointer in [library.malloc(10_000) for _ in range(1_000)]:
        library.free(pointer)

def tell():
    library.malloc_info(0, file)
    library.fflush(file)
    print("", flush=True)

file = library.fdopen(1, b"w")
tell()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
tell()
"""


def pools(**variables: str) -> int:
    """How many more pools of memory there are when four threads have worked."""
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    before, after = (info.count("<heap nr=") for info in done.stdout.split("</malloc>")[:2])
    return after - before


def test_threads_share_one_pool_of_memory_unless_the_user_has_said_how_many_they_have() -> None:
    assert pools() == 0
    assert pools(MALLOC_ARENA_MAX="8") > 0
