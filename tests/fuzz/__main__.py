"""`make fuzz`: feeds each decoder with what is almost right, for some minutes, and tells what it should not have done.

Invariant: an input follows from the seed, the decoder and a number alone. A decoder has to return or to raise
one of its errors, in three seconds and 256 MiB; what else it does is told with how to do it again. Decoders run in a
process of their own, so that a crash of the interpreter is found as well.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.fuzz.decoder import Decoder

_SECONDS: Final = 3
_MEMORY: Final = 256 << 10
"""Kilobytes by which the process may grow at one input."""
_ADDRESSES: Final = 4 << 30
"""Bytes of addresses that the process may have; arenas of threads take many that nobody uses."""


_MODULE: Final = ["-m", "tests.fuzz"]


class TooLong(BaseException):
    """An input takes longer than it may."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz, and return 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=0.0, help="of processor time, shared by the decoders")
    parser.add_argument("--inputs", type=int, default=0, help="or so many for each decoder (a tenth for slow ones)")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--decoder", action="append", help="only this one; repeatable")
    parser.add_argument("--only", type=int, help="only the input with this number")
    parser.add_argument("--note", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    return _feed(given) if given.note is not None else _watch(given)


def _watch(given: argparse.Namespace) -> int:
    """Feed decoders in a process; one that ends it is told, and another process goes on behind it."""
    found, left, minutes = 0, list(given.decoder or []), given.minutes
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "note"
        while True:
            note.write_text("")
            options = ["--minutes", str(minutes), "--inputs", str(given.inputs), "--seed", given.seed]
            options += [] if given.only is None else ["--only", str(given.only)]
            options += [word for name in left for word in ("--decoder", name)]
            command = [sys.executable, *_MODULE, *options, "--note", str(note)]
            ended = subprocess.run(command, check=False).returncode
            if ended in (0, 1):
                return max(found, ended)
            name, _, number = note.read_text().strip().rpartition(" ")
            print(f"{name}: the process ended with {ended}\n  {_again(given.seed, name, number)}", flush=True)
            found, names = 1, left or list(_decoders())
            left = names[names.index(name) + 1 :] if name in names else []
            if not left:
                return found
            minutes = minutes * len(left) / len(names)


def _decoders() -> Mapping[str, Decoder]:
    from tests.fuzz.network import NETWORK
    from tests.fuzz.output import OUTPUT
    from tests.fuzz.seals import SEALED
    from tests.fuzz.state import STATE
    from tests.fuzz.tree import TREE
    from tests.fuzz.words import WORDS

    return {**NETWORK, **SEALED, **TREE, **STATE, **OUTPUT, **WORDS}


def _feed(given: argparse.Namespace) -> int:
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    decoders, found = _decoders(), 0
    chosen = {name: decoders[name] for name in given.decoder or decoders}
    with _limited(), given.note.open("r+b", buffering=0) as note:
        for name, decoder in chosen.items():
            seeds = list(decoder.seeds())
            assert any(not _refusal(decoder.decode, decoder.named, seed) for seed in seeds), f"{name} reads no seed"
            most = given.inputs // 10 if decoder.slow else given.inputs
            began, tried, problems = time.process_time(), 0, set[str]()
            ends = began + given.minutes * 60 / len(chosen)
            for number in count() if given.only is None else [given.only]:
                if given.only is None and number >= most and time.process_time() >= ends:
                    break
                random = Random(f"{given.seed}/{name}/{number}")
                data = decoder.mutate(random, random.choice(seeds), seeds)
                os.pwrite(note.fileno(), f"{name} {number}".ljust(80).encode(), 0)
                problem, tried = _problem(decoder.decode, decoder.named, data), tried + 1
                if problem and (kind := problem.splitlines()[0][:60]) not in problems:
                    problems.add(kind)
                    print(f"{name}: {problem}\n  {data[:200]!r}\n  {_again(given.seed, name, str(number))}", flush=True)
            found |= bool(problems)
            took = time.process_time() - began
            print(f"{name}: {tried} inputs in {took:.1f} s, {len(problems) or 'no'} problems", flush=True)
    return found


@contextmanager
def _limited() -> Iterator[None]:
    """Let what takes too long be interrupted."""
    before = signal.signal(signal.SIGALRM, _too_long)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _refusal(decode: Callable[[bytes], object], named: tuple[type[Exception], ...], data: bytes) -> str:
    try:
        decode(data)
    except named as error:
        return str(error)
    return ""


def _problem(decode: Callable[[bytes], object], named: tuple[type[Exception], ...], data: bytes) -> str:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            decode(data)
        finally:  # within the other, as time may be up just now
            signal.setitimer(signal.ITIMER_REAL, 0)
    except named as error:
        if isinstance(error, MemoryError):
            return "MemoryError"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = "".join(traceback.format_tb(error.__traceback__)[-2:])
        return f"{type(error).__name__}: {str(error)[:200]}\n{where}"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return f"it took {grown >> 10} MiB" if grown > _MEMORY else ""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLong(f"longer than {_SECONDS} s")


def _again(seed: str, name: str, number: str) -> str:
    return f"again: python -m tests.fuzz --seed {seed} --decoder '{name}' --only {number}"


if __name__ == "__main__":
    sys.exit(main())
