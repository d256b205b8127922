"""The command and the environment with which a Python process starts another one that runs a module of ours.

Invariant: it imports from where this process would, and from no other place: not from the folder that it
happens to work in, which may be another user's. A SIGTERM is for the process that people or their supervisor have
started, which then tells the others; a supervisor such as systemd sends it to all of them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SAME_HASHES: Final = {"PYTHONHASHSEED": "0"}
"""The variables with which Python processes hash texts alike."""


def command_of(module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a module; it needs the `environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment() -> dict[str, str]:
    """Return this process's environment, with which another one finds the modules that this one would.

    All of them hash texts alike, so a set that is made alike has one order in all of them.

    Where this process looks in the folder that it works in, as an interactive one does, that folder is named: an empty
    entry, or one that is no place at all, would mean any folder in which the other process works.
    """
    entries = [str(Path(entry).absolute()) for entry in sys.path if Path(entry).exists()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(entries)), **SAME_HASHES}


def outlive_sigterm() -> None:
    """Go on after a SIGTERM: the driver says when it is time to leave, and without it a process ends by itself.

    The signal is not ignored, as programs that this process starts would inherit that.
    """
    signal.signal(signal.SIGTERM, lambda *_: None)
