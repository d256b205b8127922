"""What a target is for tests: a sink that writes to it, a reader that knows nothing of us, and perhaps a server.

Invariant: the reader uses another library, or another way, than the sink; a server that was killed comes back
at the same address with what it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from snapshot.program.sink import Sink


@dataclass(frozen=True, slots=True)
class Target:
    """One that runs. `rows` reads all that a reader sees now; what it raises means that it cannot be read now.

    `kill` and `start` are of its server; both None if there is none. `environment` is what the job's processes need.
    """

    sink: Sink
    plain: Sink | None
    """The same target written at-least-once, if it can be."""
    rows: Callable[[], pa.Table]
    kill: Callable[[], None] | None = None
    start: Callable[[], None] | None = None
    environment: Mapping[str, str] | None = None


Running = Callable[[Path], AbstractContextManager[Target]]
"""Makes a target whose files are in a folder, and lets it run."""
