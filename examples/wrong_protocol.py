"""The protocol of `third_party_protocol` with one subtle error, the history that shows it, and its picture.

A process takes its cut when it is told to by an announcement, and at no other time. On FIFO channels that is right: the
announcement comes before everything that is sent after it. But here a red message may overtake it.

    python -m examples.wrong_protocol
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from examples.third_party_protocol import LaiYang, Transfer, run
from snapshot.testing import Effect, Event, Received, Schedule
from snapshot.testing.search import Counterexample, replay, search


class WaitsForTheAnnouncement(LaiYang):
    """Takes no heed of the colour of what it receives."""

    def handle(self, event: Event) -> Iterable[Effect]:
        if isinstance(event, Received) and isinstance(event.message, Transfer):
            return self.receive(event.sender, event.message)
        return super().handle(event)


def run_wrong(schedule: Schedule) -> None:
    run(schedule, WaitsForTheAnnouncement)


def find(histories: int = 1000, seed: int = 0) -> Counterexample | None:
    return search(run_wrong, histories, seed=seed)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Find the history in which a subtly wrong protocol fails, and draw it.",
        epilog="example: python -m examples.wrong_protocol --histories 5000 --svg failure.svg",
    )
    parser.add_argument("--histories", type=int, default=1000, help="how many to try (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed tries others")
    parser.add_argument("--replay", metavar="SCHEDULE", help="draw the history of this schedule, in hexadecimal digits")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the history into this file as well")
    options = parser.parse_args(arguments)
    found = replay(run_wrong, options.replay) if options.replay else find(options.histories, options.seed)
    print(found or "No history breaks a promise.")
    if found and options.svg:
        options.svg.write_text(found.svg())


if __name__ == "__main__":
    main()
