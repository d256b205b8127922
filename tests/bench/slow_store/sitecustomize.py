"""Let each process of a benchmark that finds this folder among its modules have a store that can be made slow.

Invariant: only stores of checkpoints are slow, and only as long as the file that the environment names is there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from statebackend.stores.local_store import LocalStore

FLAG = "EPOCHCUT_BENCH_SLOW_STORE"
SECONDS = 2.0


def _slow(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def slowly(store: LocalStore, *arguments: Any) -> Any:
        flag = os.environ.get(FLAG)
        if flag and "checkpoints" in store.root.parts and Path(flag).exists():
            time.sleep(SECONDS)
        return method(store, *arguments)

    return slowly


for _name in ("create", "write", "upload", "read", "stat", "download", "list", "delete"):
    setattr(LocalStore, _name, _slow(getattr(LocalStore, _name)))
