"""The Spark executor in which this process runs.

What dies with an executor dies together, and its successor finds what it left.

Invariant: only a process that descends from an executor's own Java process has one; in a local session, where
the driver is the executor, and without Spark, there is none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from statebackend import means

_EXECUTOR: Final = b"ExecutorBackend"
"""In the name of every program that Spark runs as an executor; not in that of a local session, which is the driver."""


def executor_process() -> int | None:
    """Return the id of the executor's Java process, None without one; raise `OSError` if it cannot be told here."""
    pid = means.getppid()
    while pid > 1:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        status = Path(f"/proc/{pid}/stat").read_text()
        if _EXECUTOR in command:
            return pid
        pid = int(status.rpartition(")")[2].split()[1])
    return None


def executor_name() -> str:
    """Return a name that no other executor has at the same time; empty if there is none, or it cannot be told."""
    try:
        pid = executor_process()
    except OSError:
        return ""
    return "" if pid is None else f"{means.gethostname()}:{pid}"


def lasting_folder(environment: Mapping[str, str]) -> str | None:
    """Return a folder whose content an executor finds that is started in place of this one on the same host.

    A standalone cluster and YARN have such folders for each application, and remove them when it ends; both tell their
    executors, whose working directory is new each time. None elsewhere.
    """
    if "CONTAINER_ID" in environment:  # on YARN alone
        return environment.get("LOCAL_DIRS", "").split(",")[0] or None
    return environment.get("SPARK_EXECUTOR_DIRS", "").split(os.pathsep)[0] or None
