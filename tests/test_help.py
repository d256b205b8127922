"""What `help` and an editor show: every option, everything a function can do, and examples that run."""

from __future__ import annotations

import inspect
import pydoc
import re
import textwrap
from decimal import Decimal
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import recovery
import snapshot
import statebackend
from recovery.driver.settings.options import Advanced, RunOptions, described
from snapshot import InvalidProgram, ProcessContext, Stream
from statebackend import Pickled, ValueState
from statebackend.columns import schema_of
from statebackend.states.codec_choice import NoCodec, codec_of

PUBLIC = [
    (package, name)
    for package in (recovery, snapshot, statebackend)
    for name in package.__all__
    if inspect.isclass(getattr(package, name)) or inspect.isfunction(getattr(package, name))
]
BLOCK = re.compile(r"\n\n((?: {4}.*\n|\n)+)")


def examples(text: str) -> list[str]:
    """The indented blocks of a docstring that are Python: those that define or declare something."""
    blocks = [textwrap.dedent(block) for block in BLOCK.findall(inspect.cleandoc(text) + "\n")]
    return [block for block in blocks if re.match(r"\s*(class |def |[a-z_]+ = |from |import )", block)]


WITH_EXAMPLES = [
    (f"{package.__name__}.{name}", example)
    for package, name in PUBLIC
    for example in examples(vars(getattr(package, name)).get("__doc__") or "")
]


def test_help_of_run_shows_every_option_with_its_value() -> None:
    shown = pydoc.plain(pydoc.render_doc(recovery.run))
    texts = {**described(), **described(Advanced)}
    assert texts.keys() == RunOptions.__annotations__.keys() | Advanced.__annotations__.keys()
    for name, text in texts.items():
        assert f"\n    {name}\n" in shown
        assert re.search(r"\(.+\)\.?", text), f"{name}: its value when left out is not said"


def test_help_shows_everything_that_a_function_can_do() -> None:
    for name in ProcessContext.__annotations__:
        assert len(str(inspect.getdoc(getattr(ProcessContext, name)))) > 30, name


@pytest.mark.parametrize(("place", "example"), WITH_EXAMPLES, ids=[place for place, _ in WITH_EXAMPLES])
def test_an_example_in_a_docstring_runs(
    place: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # an example may write files
    names = {name: getattr(package, name) for package, name in PUBLIC}
    found = {**names, "Decimal": Decimal, "np": np, "pa": pa}
    exec(example, found)
    for value in list(found.values()):
        if isinstance(value, type) and isinstance(vars(value).get("output"), dict):
            schema_of(value.output)  # type: ignore[attr-defined]


def test_there_are_examples_of_all_kinds_of_state() -> None:
    kinds = {
        f"statebackend.{name}"
        for name in ("ValueState", "ListState", "MapState", "ReducingState", "AggregatingState", "Codec")
    }
    assert kinds <= {place for place, _ in WITH_EXAMPLES}


def test_the_example_of_a_codec_keeps_values() -> None:
    found: dict[str, object] = {"Codec": statebackend.Codec, "Decimal": Decimal}
    exec(dict(WITH_EXAMPLES)["statebackend.Codec"], found)
    decimals = codec_of(found["Decimals"]())  # type: ignore[operator]
    assert decimals.decode(decimals.encode(Decimal("1.10"))) == Decimal("1.10")


def test_a_type_without_a_codec_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(NoCodec, match=r"types that have one are int, .*; else declare Pickled\(\)"):
        ValueState(dict)
    ValueState(Pickled[dict[str, int]]())


def test_a_stream_that_is_written_nowhere_is_refused() -> None:
    stream = Stream.read(snapshot.Collection([], schema_of({"n": int})), uid="numbers")
    with pytest.raises(InvalidProgram, match=r"written nowhere; end it with \.write"):
        recovery.run(stream, checkpoints="nowhere")  # type: ignore[arg-type]


@pytest.mark.parametrize("step", ["window", "process", "sum", "connect"])
def test_a_step_that_needs_keys_says_so(step: str) -> None:
    stream = Stream.read(snapshot.Collection([], schema_of({"n": int})), uid="numbers")
    with pytest.raises(AttributeError, match=rf"{step} works for each key: say key_by"):
        getattr(stream, step)


def test_types_of_columns_may_be_named_as_arrow_names_them() -> None:
    assert schema_of({"user": "string", "spread": "float64"}) == schema_of({"user": str, "spread": float})
    with pytest.raises(ValueError, match="declared as 'strin'"):
        schema_of({"user": "strin"})


def test_modules_of_public_names_are_documented() -> None:
    for package, name in PUBLIC:
        assert import_module(getattr(package, name).__module__).__doc__
