"""A snapshot protocol of somebody else, checked with the kit: colours instead of markers, after Lai and Yang (1987).

Its channels need not be FIFO, so no marker can separate before from after. Instead every message carries the colour
of its sender, white before its cut and red after it, and a white process that is about to receive a red message
takes its cut first. When it turns red it announces how many white messages it has sent, so that everybody knows
when the last of them has arrived.

    python -m examples.third_party_protocol
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapshot.testing import (
    EXPLORED,
    Acted,
    Action,
    Channel,
    Cut,
    Effect,
    Event,
    Faults,
    History,
    Note,
    Received,
    Schedule,
    Send,
    Simulation,
    Violation,
    as_svg,
    as_text,
    check_channel_state,
    check_consistent,
    check_sequential,
)
from snapshot.testing.search import check


@dataclass(frozen=True, slots=True)
class Transfer:
    """Money on its way, in the colour of its sender; it is passed on as often as `hops` says."""

    amount: int
    hops: int
    red: bool

    def __str__(self) -> str:
        return f"{self.amount}€ {'red' if self.red else 'white'}"


@dataclass(frozen=True, slots=True)
class Announcement:
    """From a process that has turned red: so many white transfers it has sent on this channel."""

    white: int

    def __str__(self) -> str:
        return f"white: {self.white}"


@dataclass(frozen=True, slots=True)
class TurnsRed:
    """The remark that a process takes its cut, and the balance it records."""

    balance: int

    def __str__(self) -> str:
        return f"cut at {self.balance}€"


@dataclass(frozen=True, slots=True)
class Finished:
    """The remark that a process has its whole part of the snapshot: for each peer, what was in flight from it."""

    in_flight: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        return "in flight: " + (
            ", ".join(f"{list(euros)} from {peer}" for peer, euros in self.in_flight if euros) or "-"
        )


class LaiYang:
    """One bank account: it transfers money, passes money on, and takes part in one snapshot."""

    def __init__(self, peers: Sequence[str], transfers: int, starts: bool) -> None:
        self.balance = 100
        self.peers = peers
        self.transfers = transfers
        self.starts = starts
        self.red = False
        self.sent_white: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.unannounced = set(peers)
        self.in_flight: dict[str, list[int]] = {peer: [] for peer in peers}

    def handle(self, event: Event) -> Iterable[Effect]:
        match event:
            case Acted(Action("transfer", str(to))):
                self.transfers -= 1
                return [self.pay(to, 1 + self.transfers, hops=1)]
            case Acted(Action("snapshot")):
                self.starts = False
                return self.turn_red()
            case Received(sender, Transfer() as transfer):
                cut = self.turn_red() if transfer.red and not self.red else []
                return [*cut, *self.receive(sender, transfer)]
            case Received(sender, Announcement(white)):
                cut = [] if self.red else self.turn_red()
                self.missing[sender] += white
                self.unannounced.remove(sender)
                return [*cut, *self.finish()]
            case _:
                return []

    def actions(self) -> Sequence[Action]:
        transfers = [Action("transfer", peer) for peer in self.peers] if self.transfers else []
        return [*transfers, Action("snapshot")] if self.starts else transfers

    def turn_red(self) -> list[Effect]:
        self.red = True
        announcements = [Send(peer, Announcement(self.sent_white[peer])) for peer in self.peers]
        return [Note(TurnsRed(self.balance)), *announcements]

    def receive(self, sender: str, transfer: Transfer) -> list[Effect]:
        self.balance += transfer.amount
        effects: list[Effect] = []
        if not transfer.red:
            self.missing[sender] -= 1
            if self.red:
                self.in_flight[sender].append(transfer.amount)
                effects += self.finish()
        if transfer.hops:
            to = self.peers[(self.peers.index(sender) + 1) % len(self.peers)]
            effects.append(self.pay(to, transfer.amount, transfer.hops - 1))
        return effects

    def pay(self, to: str, amount: int, hops: int) -> Send:
        self.balance -= amount
        self.sent_white[to] += not self.red
        return Send(to, Transfer(amount, hops, self.red))

    def finish(self) -> list[Effect]:
        if self.unannounced or any(self.missing.values()):
            return []
        return [Note(Finished(tuple((peer, tuple(euros)) for peer, euros in self.in_flight.items())))]


def euros(message: object) -> object | None:
    """What an announcement carries does not belong to the accounts; what a transfer carries does."""
    return message.amount if isinstance(message, Transfer) else None


def cut_of(history: History) -> Cut:
    """What the processes recorded, together."""
    cuts = history.notes(TurnsRed)
    parts = {record.process: note for record, note in history.notes(Finished)}
    if unfinished := set(history.processes) - set(parts):
        raise Violation(f"{', '.join(sorted(unfinished))} did not finish the snapshot")
    return Cut(
        {record.process: history.before(record) for record, _ in cuts},
        {record.process: note.balance for record, note in cuts},
        {Channel(peer, name): amounts for name, part in parts.items() for peer, amounts in part.in_flight},
        "the snapshot",
    )


def open_accounts(schedule: Schedule, account: type[LaiYang]) -> dict[str, Callable[[], LaiYang]]:
    """Two to four of them, and a few transfers, as the first bytes of the schedule say."""
    names = [f"p{number}" for number in range(2 + schedule.number(3))]
    transfers = schedule.number(4)

    def opening(name: str) -> Callable[[], LaiYang]:
        peers = [peer for peer in names if peer != name]
        return lambda: account(peers, transfers, starts=name == "p0")

    return {name: opening(name) for name in names}


def check_snapshot(history: History, accounts: Mapping[str, Callable[[], LaiYang]]) -> None:
    cut = cut_of(history)
    check_consistent(history, cut, euros)
    check_channel_state(history, cut, euros)
    check_sequential(history, cut, accounts, lambda account: account.balance, euros)


def run(schedule: Schedule, account: type[LaiYang] = LaiYang) -> History:
    """One history, on channels on which messages may overtake each other."""
    accounts = open_accounts(schedule, account)
    everywhere = {Channel(a, b) for a in accounts for b in accounts}
    history = Simulation(accounts, schedule, Faults(overtaking=everywhere)).run()
    check_snapshot(history, accounts)
    return history


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Check a snapshot protocol without markers and draw one of its histories.",
        epilog="example: python -m examples.third_party_protocol --svg history.svg",
    )
    parser.add_argument("--histories", type=int, default=1000, help="how many to try (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="another seed tries others")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the history into this file as well")
    options = parser.parse_args(arguments)
    check(run, options.histories, seed=options.seed)
    print(
        f"{EXPLORED}: each snapshot is consistent, complete, and a state of a sequential execution.\n\nOne of them:\n"
    )
    history = run(Schedule(bytes.fromhex("5640000000005600c0")))
    print(as_text(history, cut_of(history)))
    if options.svg:
        options.svg.write_text(as_svg(history, cut_of(history)))


if __name__ == "__main__":
    main()
