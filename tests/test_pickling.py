"""What a program is made of reaches processes that cannot import it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import cloudpickle
import pytest

from snapshot.program.pickling import dumps, loads
from tests.program_parts import Nowhere

SCRIPT = """
import sys
import pyarrow as pa
import recovery
from snapshot import Collection, KeyedProcess, Stream, ToDriver
from statebackend import ValueState

class Total(KeyedProcess):
    total = ValueState(int, default=0)
    output = {"word": str, "total": int}

    def on_event(self, event, ctx):
        self.total.set(self.total.get() + SIGN * event.count)
        ctx.emit((ctx.key, self.total.get()))

SIGN = -1
WORDS = pa.schema({"word": pa.string(), "count": pa.int64()})
program = (
    Stream.read(Collection([("a", 1), ("b", 2), ("a", 3)], WORDS), uid="words")
    .flat_map(lambda row: [(row.word * 2, row.count)], schema={"word": str, "count": int})
    .key_by("word").process(Total(), uid="totals").write(ToDriver(), uid="out")
)
with recovery.run(program, checkpoints=sys.argv[1], local=sys.argv[2], progress=False) as run:
    print(sorted((row["word"], row["total"]) for row in run.rows("out")))
assert "pyspark" not in sys.modules
"""

ELSEWHERE = """
class Doubled:
    def of(self, number):
        return FACTOR * number

FACTOR = 2
"""


def test_classes_and_lambdas_of_a_script_reach_its_processes_without_pyspark(tmp_path: Path) -> None:
    script = tmp_path / "totals.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path / "tree"), str(tmp_path / "local")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "[('aa', -4), ('aa', -1), ('bb', -2)]\n", ran.stderr


def test_a_module_that_only_this_process_knows_travels_with_what_it_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "known_here.py"
    file.write_text(ELSEWHERE)
    spec = spec_from_file_location("known_here", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "known_here", module)
    spec.loader.exec_module(module)
    (tmp_path / "pickled").write_bytes(dumps(module.Doubled()))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).of(21))"
    command = [sys.executable, "-c", code, str(tmp_path / "pickled")]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "42\n"
    assert not cloudpickle.list_registry_pickle_by_value()


def test_what_other_processes_can_import_travels_by_its_name() -> None:
    assert loads(dumps(Nowhere)) is Nowhere
    assert b"program_parts" in dumps(Nowhere)
