"""A short run of `make fuzz`, and that it would find what is wrong."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from snapshot.cut import seals, wire
from tests.fuzz import __main__ as fuzz
from tests.fuzz.decoder import Decoder, dumped
from tests.fuzz.mutations import changed_text
from tests.fuzz.seals import FOREIGN, OURS, SEALED
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


def test_a_document_that_is_none_any_more_is_changed_as_bytes_are() -> None:
    assert all(changed_text(Random(seed), b"\xff" * 50, dumped) for seed in range(5))


Check = Callable[[bytes, bytes, bytes, int, int], bool]


def first_bytes(key: bytes, said: bytes, shown: bytes, number: int, position: int) -> bool:
    return shown[:15] == seals.seal(key, said, number, position)[:15]


def any_number(key: bytes, said: bytes, shown: bytes, number: int, position: int) -> bool:
    return any(shown == seals.seal(key, said, other, position) for other in range(12))


def any_position(key: bytes, said: bytes, shown: bytes, number: int, position: int) -> bool:
    return any(shown == seals.seal(key, said, number, other) for other in range(400))


def any_direction(key: bytes, said: bytes, shown: bytes, number: int, position: int) -> bool:
    return any(shown == seals.seal(other, said, number, position) for other in (OURS.speaking, OURS.hearing))


def any_connection(key: bytes, said: bytes, shown: bytes, number: int, position: int) -> bool:
    return any(shown == seals.seal(other, said, number, position) for other in (OURS.speaking, FOREIGN.speaking))


def anything(key: bytes, said: bytes, shown: bytes, number: int, position: int) -> bool:
    return True


CHECKS = (first_bytes, any_number, any_direction, any_connection, anything)


@pytest.mark.parametrize(
    ("name", "check"), [*((name, check) for name in SEALED for check in CHECKS), ("sealed frames", any_position)]
)
def test_a_check_of_seals_that_leaves_something_out_is_found(
    name: str, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (seals, wire):
        monkeypatch.setattr(
            module, "is_sealed", lambda key, said, shown, number, at=0: check(key, said, shown, number, at)
        )
    decoder = SEALED[name]
    problems = (
        fuzz._problem(decoder.decode, decoder.named, decoder.mutate(Random(number), b"", list(decoder.seeds())))
        for number in range(3000)
    )
    assert any(problem.startswith("AssertionError: ") for problem in problems)
