"""A short run of `make fuzz`, and that it would find what is wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import __main__ as fuzz
from tests.fuzz.decoder import Decoder
from tests.fuzz.tree import TREE

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(300)
def test_every_decoder_takes_or_refuses_by_name_what_nobody_meant(search_factor: int) -> None:
    inputs = str(200 * search_factor)
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--inputs", inputs], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("no problems") == len(fuzz._decoders())


def test_what_takes_too_long_or_has_no_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "_SECONDS", 0.1)

    def asleep(_: bytes) -> None:
        time.sleep(60)

    with fuzz._limited():
        assert fuzz._problem(len, (), b"x") == ""
        assert fuzz._problem(lambda data: data.decode(), (UnicodeDecodeError,), b"\xff") == ""
        assert fuzz._problem(lambda data: data.decode(), (KeyError,), b"\xff").startswith("UnicodeDecodeError: ")
        assert fuzz._problem(asleep, (Exception,), b"x").startswith("TooLong: longer than")


def test_a_decoder_that_takes_much_memory_or_ends_the_interpreter_is_found(tmp_path: Path) -> None:
    script = tmp_path / "crashing.py"
    script.write_text(
        "import ctypes, sys\n"
        "from tests.fuzz import __main__ as fuzz\n"
        "from tests.fuzz.decoder import Decoder\n"
        "fuzz._decoders = lambda: {\n"
        "    'greedy': Decoder(lambda data: data == b'' or len(bytearray(b'x') * (1 << 29)), lambda: [b''], ()),\n"
        "    'crashing': Decoder(lambda data: data == b'' or ctypes.string_at(0), lambda: [b''], ()),\n"
        "}\n"
        "fuzz._MODULE = [__file__]\n"
        "sys.exit(fuzz.main())\n"
    )
    command = [sys.executable, str(script), "--inputs", "10", "--seed", "x"]
    run = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "greedy: it took 5" in run.stdout
    assert "crashing: the process ended with -11" in run.stdout
    assert "again: python -m tests.fuzz --seed x --decoder 'crashing' --only " in run.stdout


@pytest.mark.parametrize("decoder", TREE.values(), ids=TREE)
def test_an_input_follows_from_seed_and_number(decoder: Decoder) -> None:
    seeds = list(decoder.seeds())
    once, again = ([decoder.mutate(Random(f"1/{number}"), seeds[0], seeds) for number in range(5)] for _ in range(2))
    assert once == again
    assert len(set(once)) > 1
