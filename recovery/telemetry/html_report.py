"""A report on a job in one file: the page with its data inside, which asks for nothing when it is opened.

Invariant: a text of the job can end no script and begin none, and the policy in the file allows its own script alone.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from recovery.telemetry.page_data import page_data
from recovery.telemetry.past_job import PastJob
from recovery.telemetry.tree_data import tree_data
from recovery.telemetry.watch import file_of_page
from statebackend import means

_ESCAPED: Final = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_EPOCHS: Final = 1_000
"""The newest epochs that a report has."""
_SCRIPT: Final = '<script src="/page.js"></script>'
_HEAD: Final = '<meta charset="utf-8">'


@dataclass(frozen=True, slots=True)
class Reported:
    """A report that was written."""

    job: str
    file: Path
    bytes: int
    epochs: int
    recoveries: int


def report(
    checkpoints: str | Path,
    out: str | Path,
    *,
    job_folder: str | Path | None = None,
    events: str | Path | None = None,
) -> Reported:
    """Write what is known of a job, which may run, into one file for browsers; a file that is there is replaced.

    `job_folder` is the option `local` of `recovery.run`, `events` that option: needed only if they were given.
    `WrongJob` if there is no job at the checkpoints; a tree that is damaged otherwise is told of in the report.
    """
    job = PastJob(str(checkpoints), folder=_path(job_folder), events=_path(events), kept=_EPOCHS)
    with closing(job):
        seen = job.seen()
    html, file = html_of(page_data(seen, means.wall()), tree_data(job.uri)), Path(out)
    fresh = file.with_name(f".{file.name}-{means.token_hex(8)}")
    try:
        fresh.write_bytes(html)
        fresh.replace(file)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise
    return Reported(job.job, file, len(html), len(seen.epochs), len(seen.recoveries))


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def html_of(data: Mapping[str, object], tree: Mapping[str, object]) -> bytes:
    """Return the file; `data` is that of the page, `tree` that of its savepoints."""
    page, script = file_of_page("page.html").decode(), file_of_page("page.js").decode()
    inside = json.dumps({"data": data, "tree": tree}, separators=(",", ":"), allow_nan=False).translate(_ESCAPED)
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    page = page.replace(_HEAD, f'{_HEAD}\n<meta http-equiv="Content-Security-Policy" content="{policy}">')
    return page.replace(
        _SCRIPT, f'<script type="application/json" id="data">{inside}</script>\n<script>{script}</script>'
    ).encode()
