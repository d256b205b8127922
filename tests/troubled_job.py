"""A job in a program of its own that says what its channels have: `python -m tests.troubled_job FOLDER`.

Invariant: a file's permissions count for it, whoever runs it. It writes a line of JSON for each record of
`logging`, for each epoch, and for each `status` that it reads; standard error is as a user's program leaves it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

import recovery
from snapshot import Generate, Program, Stream, ToFiles
from snapshot.connectors.memory.generate import Columns, Indices
from statebackend.columns import schema_of

KEYS: Final = 17
_PLAIN: Final = "--plain"
_DROP: Final = 24
_CAPABILITIES: Final = (1, 2)
"""Root's, to read and write whatever the permissions say: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


def _rows(i: Indices) -> Columns:
    return {"k": i % KEYS, "one": np.ones(len(i), np.int64)}


def program(output: Path) -> Program:
    rows = Generate(_rows, schema_of({"k": int, "one": int}), rate=2_000.0)
    return (
        Stream.read(rows, uid="rows")
        .key_by("k")
        .sum("one", uid="counts")
        .write(ToFiles(str(output), "jsonl"), uid="out")
    )


def main(folder: Path) -> None:
    """Run it until `stop` is read."""
    _say_all_records()
    with recovery.run(program(folder / "output"), checkpoints=folder / "tree", local=folder / "local") as run:
        run.listen(lambda event: _say("event", name=type(event).__name__))
        _say("started")
        for line in sys.stdin:
            if line.strip() == "stop":
                run.stop()
                return
            status = run.status()
            _say("status", state=status.state.value, trouble=status.trouble, failure=status.failure)


def _say_all_records() -> None:
    """No logger gets a handler: where records go by themselves is what tests want to see."""
    made = logging.getLogRecordFactory()

    def make(*given: Any, **more: Any) -> logging.LogRecord:
        record = made(*given, **more)
        _say("logged", name=record.name, level=record.levelname, text=record.getMessage())
        return record

    logging.setLogRecordFactory(make)


def _say(kind: str, **what: object) -> None:
    print(json.dumps({"kind": kind, **what}) + "\n", end="", flush=True)  # in one piece, as threads speak at once


def _without_privileges() -> None:
    """Begin again as a program for which permissions count; for others than root they do."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _CAPABILITIES:
        if libc.prctl(_DROP, capability, 0, 0, 0) and os.geteuid() == 0:
            raise OSError(ctypes.get_errno(), "root cannot do without its privileges here")
    os.execv(sys.executable, [sys.executable, "-m", "tests.troubled_job", _PLAIN, *sys.argv[1:]])


if __name__ == "__main__":
    if sys.argv[1] != _PLAIN:
        _without_privileges()
    main(Path(sys.argv[2]))
