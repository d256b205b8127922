"""`recovery inject`: faults in a running job, one at a moment, or many at random with a report.

Invariant: what could not be done is told as such, and counted as such; a fault is done once. Ctrl-C ends a
schedule behind the fault that is being done, and what was done is reported.
"""

from __future__ import annotations

import argparse
import random
import time

from recovery.attached import Attached
from recovery.command.arguments import Verbs, add_running_job, add_verb, attached_to, show
from recovery.command.exits import WrongUsage
from recovery.command.random_faults import add_to as add_random
from recovery.command.random_faults import in_words
from recovery.inject.moments import Alarm, NotAMoment, parse_moment
from recovery.inject.schedule import Group, choose
from recovery.inject.targets import Anything, ContradictingOrder, Kind, NotATarget, Order, Target, parse_target
from statebackend.durations import NotADuration, milliseconds

_EXAMPLES = {
    Kind.KILL: """  $ recovery inject kill --checkpoints /data/clicks --target worker:1 --at epoch:17+0.3s
  kill worker:1: process 4711 (8f3a90d25b1e44c7), 301 ms after epoch 17-1 was complete""",
    Kind.STOP: """  $ recovery inject stop --checkpoints /data/clicks --target worker:0 --for 5s
  stop worker:0 for 5 s: process 4710 (01b77c3d9e2f6a58), 84 ms after epoch 40-1 was complete""",
    Kind.CUT: """  $ recovery inject cut --checkpoints /data/clicks --target link:0-1 --for 10s
  $ recovery inject cut --checkpoints /data/clicks --target worker:1-driver --for 3s
  $ recovery inject cut --checkpoints /data/clicks --target link:0-1 --mid-frame
  break link:0-1: process 4710 (01b77c3d9e2f6a58), 120 ms after epoch 61-1 was complete""",
    Kind.DELAY: """  $ recovery inject delay --checkpoints /data/clicks --target link:0-1 --delay 200ms --for 10s
  delay link:0-1 by 200 ms for 10 s: process 4710 (01b77c3d9e2f6a58), 9 ms after epoch 70-1 was complete""",
}

_SUMMARIES = {
    Kind.KILL: "kill a process of the job, at once, by SIGKILL",
    Kind.STOP: "let a process of the job hang for a time, by SIGSTOP",
    Kind.CUT: "let connections carry nothing for a time, or break them inside a frame",
    Kind.DELAY: "let what connections carry come later, for a time",
}

_MOMENTS = "now, +3s, epoch:17+0.3s, epoch:17:triggered+50ms or epoch:next+0.3s (now)"
_TARGETS = (
    "worker:2 (partition 2), replica:2.1, primary:2, partition:2 (all replicas), standby:0, driver, executor:2, "
    "link:0-1, worker:2-driver or random"
)


def add_to(verbs: Verbs) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "inject",
        help="let a fault happen in a running job",
        description="Let a fault happen in a running job, now or at a moment of its life; or many, at random.",
        epilog=f"example, and see `recovery inject FAULT --help`:\n{_EXAMPLES[Kind.KILL]}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(title="faults", metavar="FAULT", required=True)
    for kind, summary in _SUMMARIES.items():
        _add_kind(kinds, kind, summary)
    add_random(kinds)


def _add_kind(kinds: Verbs, kind: Kind, summary: str) -> None:
    parser = add_verb(kinds, kind.value, summary, f"example:\n{_EXAMPLES[kind]}\n", _run)
    parser.set_defaults(kind=kind, lasting=None, by=None, mid_frame=False)
    add_running_job(parser)
    parser.add_argument("--target", required=True, metavar="WHO", help=_TARGETS)
    parser.add_argument("--at", default="now", metavar="WHEN", help=_MOMENTS)
    parser.add_argument("--seed", type=int, help="for the target `random`")
    if kind is not Kind.KILL:
        parser.add_argument("--for", dest="lasting", metavar="TIME", help="how long, such as 10s")
    if kind is Kind.CUT:
        parser.add_argument("--mid-frame", action="store_true", help="close them in the middle of a frame instead")
    if kind is Kind.DELAY:
        parser.add_argument("--delay", dest="by", metavar="TIME", help="by how much, such as 200ms")


def _run(arguments: argparse.Namespace) -> None:
    try:
        target, moment = parse_target(arguments.target), parse_moment(arguments.at)
        kind = Kind.BREAK if arguments.mid_frame else arguments.kind
        order = Order(kind, target, _milliseconds(arguments.lasting), _milliseconds(arguments.by))
    except (NotATarget, NotAMoment, NotADuration, ContradictingOrder) as error:
        raise WrongUsage(str(error)) from error
    with attached_to(arguments) as job:
        job.follow()
        _wait(job, Alarm(moment, time.monotonic(), job.status().complete))
        if isinstance(order.target, Anything):
            chosen = _somebody(job, order.kind, random.Random(arguments.seed))
            order = Order(order.kind, chosen, order.lasting, order.by)
        injected = job.inject(order)
    show(injected, in_words(injected), as_json=arguments.json)


def _wait(job: Attached, alarm: Alarm) -> None:
    while alarm.due is None or alarm.due > time.monotonic():
        event = job.next_event(None if alarm.due is None else max(0.0, alarm.due - time.monotonic()))
        if event is not None:
            alarm.heard(event, time.monotonic())


def _somebody(job: Attached, kind: Kind, draw: random.Random) -> Target:
    groups = (Group.WORKERS, Group.STANDBYS, Group.LINKS)
    while (target := choose(kind, groups, job.status().roles, draw.random)) is None:
        job.next_event()
    return target


def _milliseconds(text: str | None) -> int | None:
    return None if text is None else milliseconds(text)
