"""Processes race to create the same journal entry: exactly one is told that it did, and all others know which one.

What is checked is what fencing rests on, between operating system processes as drivers are, each with its own store.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex

from statebackend.stores.store import Creation
from statebackend.testing.blob_store import BrokenPromise, OpenStore

_PATIENCE = 120.0
_start: threading.Barrier


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that one racer got in one round, and the entry that it read right after that."""

    told: Creation
    read: int


@dataclass(frozen=True, slots=True)
class RaceReport:
    """The result of a race that kept all promises: `wins` says how many rounds each racer won."""

    rounds: int
    wins: tuple[int, ...]


def race_for_one_name(open_store: OpenStore, processes: int = 32, rounds: int = 200) -> RaceReport:
    """Let processes race for one name, round after round; `BrokenPromise` if a round has not exactly one winner.

    In each round all begin at the same moment, and each reads the entry as soon as it has its answer. `open_store`
    must be picklable, as a `functools.partial` of a module's function is. Errors of the store are raised as they are.
    """
    context = multiprocessing.get_context("forkserver")
    # So that the modules of the store are imported once, and not by each process.
    context.set_forkserver_preload([__name__, type(open_store()).__module__])
    folder, start = f"race-{token_hex(8)}", context.Barrier(processes)
    with ProcessPoolExecutor(processes, context, initializer=_take_place, initargs=(start,)) as racers:
        running = [racers.submit(_race, open_store, folder, rounds, racer) for racer in range(processes)]
        # The error that ended the race, not the broken barrier of the racers that waited in vain for it.
        wait(running)
        errors = [error for error in (racer.exception() for racer in running) if error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        answers = [racer.result() for racer in running]
    winners = Counter(_winner(number, list(told)) for number, told in enumerate(zip(*answers, strict=True)))
    return RaceReport(rounds, tuple(winners[racer] for racer in range(processes)))


def _take_place(start: threading.Barrier) -> None:
    global _start
    _start = start


def _race(open_store: OpenStore, folder: str, rounds: int, racer: int) -> list[Answer]:
    try:
        store = open_store()
        answers = []
        for number in range(rounds):
            path = f"{folder}/{number:010}.json"
            _start.wait(_PATIENCE)
            told = store.create(path, _entry(racer))
            answers.append(Answer(told, _racer_of(store.read(path))))
        return answers
    except BaseException:
        with suppress(OSError):
            _start.abort()
        raise


def _entry(racer: int) -> bytes:
    """Return an entry so long that a part of it would be noticed."""
    return b"%010d" % racer * 400


def _racer_of(entry: bytes) -> int:
    racer = int(entry[:10] or b"-1")
    if entry != _entry(racer):
        raise BrokenPromise(f"an entry is read whole, but {len(entry)} bytes were, beginning {entry[:30]!r}")
    return racer


def _winner(number: int, answers: list[Answer]) -> int:
    winners = [racer for racer, answer in enumerate(answers) if answer.told is Creation.CREATED]
    if len(winners) != 1:
        raise BrokenPromise(
            f"of {len(answers)} racing processes exactly one creates the entry; but in round {number} "
            f"the racers {winners} were told that they did"
        )
    others = {answer.read for answer in answers} - set(winners)
    if others:
        raise BrokenPromise(
            f"all racers read the winner's entry; but in round {number} racer {winners[0]} won, "
            f"and the entry of {sorted(others)} was read as well"
        )
    return winners[0]
