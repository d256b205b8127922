"""A backend's own folder: new when it begins, gone when it ends, and never used again after a crash."""

from __future__ import annotations

from pathlib import Path
from shutil import rmtree

from statebackend.backends.backend import BackendError
from statebackend.backends.rocksdb_tables import named_errors


def make_fresh(folder: Path) -> None:
    """Make the folder, or take an empty one; `BackendError` if it has anything in it."""
    with named_errors(f"make {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BackendError(
                f"{folder} is not empty. A backend is never opened a second time, as nobody could tell what a crash "
                f"left in it: delete the folder, or give another one"
            )


def remove(folder: Path) -> None:
    """Remove the folder; what cannot be removed stays, for whoever tidies up what crashes leave as well."""
    rmtree(folder, ignore_errors=True)
