"""Programs as people write them, given to type checkers: those of the pages, of docstrings, and the examples.

`make lint` runs it. Both checkers find the types of this package by its `py.typed`, and check programs as they do by
default.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.test_help import PUBLIC, WITH_EXAMPLES

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = ("README.md", "snapshot/README.md", "statebackend/README.md", "recovery/README.md")

GIVEN: Final = (
    "from pyspark.sql import SparkSession\n\nspark = SparkSession.builder.getOrCreate()\ndf = spark.range(1)\n"
)
"""What the pages' queries of Spark have already."""

AS_PEOPLE_EXPECT: Final = """
from typing import assert_type

import recovery
from snapshot import KeyedCoProcess, KeyedProcess, ListState, MapState, ProcessContext, ReducingState, Row, ValueState
from statebackend import FileSet, SnapshotFolder


class Joined(KeyedCoProcess):
    name = ValueState(str)
    total = ValueState(int, default=0)
    amounts = ListState(float)
    pages = MapState(str, int)
    most = ReducingState(int, max)

    def on_first(self, order: Row, c: ProcessContext) -> None:
        assert_type(self.name.get(), str | None)
        assert_type(self.total.get(), int)
        assert_type(self.amounts.get(), list[float])
        assert_type(self.pages.get("a"), int | None)
        assert_type(self.most.get(), int | None)
        self.name.set("ann")
        self.name.set(None)
        self.total.set(self.total.get() + 1)

    def on_second(self, user, ctx):
        self.pages.put(user.page, 1)

    def on_timer(self, when: int, c: ProcessContext) -> None:
        c.emit((when,))


def in_order(run: recovery.Run) -> list[str]:
    return [row["word"] for row in sorted(run.rows("counts"), key=lambda row: (row["window_start"], row["word"]))]


def completed(folder: SnapshotFolder, files: FileSet) -> None:
    day = folder.begin()
    folder.names(day, partition=0, attempt=0)
    folder.complete(folder.next_epoch(day), {0: files}, note="7")
"""


def programs() -> Iterator[tuple[str, str]]:
    """Names and texts."""
    for page in PAGES:
        for number, (kind, block) in enumerate(
            re.findall(r"```(py|python)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        ):
            name = page.removesuffix(".md").replace("/", "_").lower()
            yield f"{name}_{number}", GIVEN + block if kind == "py" else block
    for number, (place, example) in enumerate(WITH_EXAMPLES):
        used = sorted({(package.__name__, name) for package, name in PUBLIC if re.search(rf"\b{name}\b", example)})
        imports = [f"from {package} import {name}" for package, name in used]
        header = "\n".join(["from decimal import Decimal", "import numpy as np", "import pyarrow as pa", *imports])
        yield f"help_{number}_{place.replace('.', '_')}", f"{header}\n\n{example}"
    yield "as_people_expect", AS_PEOPLE_EXPECT


def main() -> int:
    with TemporaryDirectory(dir=ROOT, prefix="typed-") as folder:
        for name, text in programs():
            Path(folder, f"{name}.py").write_text(text)
        mypy = [sys.executable, "-m", "mypy", "--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
        pyright = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
        commands = [[*mypy, "--cache-dir", f"{folder}/cache", folder], [*pyright, folder, "examples"]]
        quiet = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
        return max([subprocess.run(command, cwd=ROOT, env=quiet, check=False).returncode for command in commands])


if __name__ == "__main__":
    sys.exit(main())
