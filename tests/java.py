"""How tests start Java: it compiles little, and Spark's finds most of its classes in a file, if there is one."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

JAVA_ARCHIVE: Final = Path(__file__).parent.parent / "build" / f"spark-{sys.version_info[0]}.{sys.version_info[1]}.jsa"
"""Kept by the test that shows how such files are made, for all tests that follow."""


def keep(archive: Path) -> None:
    """Have later starts of Java use this archive; those that are running keep the one before."""
    JAVA_ARCHIVE.parent.mkdir(exist_ok=True)
    new = JAVA_ARCHIVE.with_suffix(".new")
    shutil.copyfile(archive, new)
    new.replace(JAVA_ARCHIVE)
