"""All that lies in a folder, to see afterwards that nothing of it was touched; and when sinks have written it all."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from snapshot.testing.sinks import SinkTrial


def survey(folder: Path, *, but: Collection[Path] = ()) -> dict[str, str]:
    """Return what each path below the folder is, with content and times; what lies at or below `but` is left out."""
    found = {}
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        folders[:] = [name for name in folders if here / name not in but]
        for path in (here / name for name in (*folders, *names)):
            if path in but:
                continue
            about = path.lstat()
            if path.is_symlink():
                found[str(path)] = f"link to {path.readlink()}"
            elif path.is_file():
                found[str(path)] = f"{about.st_mode:o} {about.st_mtime_ns} {path.read_bytes()!r}"
            else:
                found[str(path)] = f"{about.st_mode:o}"
    return found


def watched(trial: SinkTrial, target: Path) -> SinkTrial:
    """Return the trial of a sink that writes to this folder, with things beside it that no payload may lead to."""
    beside = target.parent
    thesis, folder = beside / "thesis.doc", beside / "elsewhere"
    folder.mkdir(parents=True)
    thesis.write_text("three years")
    elsewhere = [str(folder), f"file://{folder}", str(thesis), f"../{thesis.name}", f"../../{thesis.name}"]
    return replace(trial, elsewhere=elsewhere, outside=lambda: survey(beside, but=[target]))


def wait_for_pieces() -> None:
    """Return when no sink of this process stores a piece: one that was closed may still be writing its last file."""
    for thread in threading.enumerate():
        if thread.name.startswith("pieces-"):
            thread.join(1)
            while thread.is_alive():
                gc.collect()  # a sink that was given up without a close ends its thread only when Python finds it
                thread.join(1)
