"""Jobs that have faults at random moments, again and again, and their output compared with the truth.

A process is killed, or the driver, or one that stands by, or on a cluster an executor; one hangs, or is cut off, or its
links are; a connection breaks inside a frame: all of it as people bring it about themselves, through `recovery.attach`.

Invariant: what is drawn follows from the seed alone, though what a moment meets does not; every row of every
job's output is compared.

    python -m tests.job_kills --kills 200 --seed 1 --kinds worker,hung
    python -m tests.job_kills --scheme synchronous --kills 100
    python -m tests.job_kills --scheme acks --kills 100 --kinds worker     rows may come twice, and are counted
    python -m tests.job_kills --spark --kills 50 --kinds worker,executor
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final, get_args

import recovery
from recovery.inject.targets import ExecutorOf, LinkBetween, Order, StandbyAt, Target, WorkerOf
from recovery.inject.targets import Kind as What
from statebackend.ids import Partition
from tests.fault_report import HEADING, Fault, Kind, Tally, attribute
from tests.jobs.catalogue import JOBS
from tests.jobs.comparison import Comparison
from tests.jobs.driver import Mode, SchemeName, Settings
from tests.jobs.job import SinkKind
from tests.jobs.running_job import Phase, RunningJob
from tests.jobs.skewed import SKEWED

SINKS: Final[tuple[SinkKind, ...]] = ("jsonl", "parquet", "jsonl", "parquet", "driver")
MODES: Final[tuple[Mode, ...]] = ("aligned", "unaligned", "alignment_timeout")

_RATE: Final = 4_000
_UNBOUNDED: Final = 1e9
_ROWS_PER_KILL: Final = 5_000
_MANY: Final = 20
_CORES: Final = 4
_SHORTEST: Final = 200
"""Milliseconds that a fault lasts at least, if it lasts."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One job, how often something of it is killed, and the seed of the moments."""

    settings: Settings
    kills: int
    seed: int
    driver_too: bool
    """Rows that the driver itself was given die with it, so it is killed only where output is in files. The next one
    may have another parallelism."""
    kinds: tuple[Kind, ...] = (Kind.WORKER, Kind.DRIVER)
    longest: int = 6_000
    """Milliseconds that a fault lasts at most; short ones come as often as long ones."""


@dataclass(slots=True)
class Report:
    """What was done, and what came of it."""

    kills: Counter[Phase] = field(default_factory=Counter)
    """By what the job was at."""
    drivers: int = 0
    """Kills of the driver, among the others."""
    faults: list[Fault] = field(default_factory=list)
    tallies: dict[Kind, Tally] = field(default_factory=dict)
    declined: int = 0
    """Faults that could not be, as whom they were for had just gone."""
    missed: int = 0
    """Processes that had just gone when they were to be killed."""
    restarts: int = 0
    alone: int = 0
    trials: int = 0
    seconds: float = 0.0
    compared: Comparison = field(default_factory=lambda: Comparison(0))

    @property
    def killed(self) -> int:
        return self.kills.total()

    def note(self, kind: Kind, job: RunningJob, count: int = 1) -> None:
        """So many faults of a kind happen now."""
        course = job.course
        since = None if course.completed_at is None else (time.monotonic() - course.completed_at) * 1000
        self.kills[course.phase] += count
        self.faults += [Fault(kind, course.phase, since, len(job.events)) for _ in range(count)]

    def close(self, job: RunningJob, compared: Comparison) -> None:
        """The job is over."""
        self.compared, self.restarts, self.alone = compared, job.restarts, job.alone
        attribute(self.faults, job.events)
        for kind in Kind:
            some = [fault for fault in self.faults if fault.kind is kind]
            if some:
                self.tallies[kind] = Tally(some, 1, compared)

    def table(self) -> str:
        """Kind by kind."""
        return "\n".join([HEADING, *(self.tallies[kind].line(kind) for kind in Kind if kind in self.tallies)])

    def add(self, other: Report) -> None:
        for kind, tally in other.tallies.items():
            mine = self.tallies.setdefault(kind, Tally())
            mine.faults += tally.faults
            mine.jobs += tally.jobs
            mine.compared += tally.compared
        self.declined += other.declined
        self.kills += other.kills
        self.drivers += other.drivers
        self.restarts += other.restarts
        self.alone += other.alone
        self.trials += other.trials
        self.seconds += other.seconds
        self.compared += other.compared

    def __str__(self) -> str:
        phases = ", ".join(f"{self.kills[phase]} {phase.value}" for phase in Phase)
        found = self.compared
        return (
            f"{self.killed} faults ({phases}; {self.drivers} of them of the driver) in {self.trials} jobs, "
            f"{self.restarts} rollbacks, {self.alone} restarts of one partition; {found.rows} rows compared: "
            f"{found.lost} lost, {found.twice} twice, {found.wrong} wrong; {self.seconds:.0f} s"
        )


def draw(
    random: Random,
    folder: Path,
    kills: int,
    jobs: Sequence[str],
    kinds: tuple[Kind, ...],
    spark: str = "",
    scheme: SchemeName = "passive",
) -> Trial:
    """A job with random parameters, and at most so many faults; on this cluster, if one is given.

    Under another scheme than the usual one markers are aligned: it takes no others.
    """
    sink = random.choice(SINKS)
    kills = min(kills, random.randint(4, 10))
    settings = Settings(
        folder=str(folder),
        job=random.choice(jobs),
        rows=_ROWS_PER_KILL * (kills + 1),
        rate=_RATE,
        sink=sink,
        parallelism=random.randint(1, 3),
        standbys=random.choice((0, 1)),
        mode=random.choice(MODES if scheme == "passive" else ("aligned",)),
        scheme=scheme,
        every=f"{random.randint(100, 400)}ms",
        lost_after="2s" if set(kinds) & {Kind.HUNG, Kind.CUT_OFF, Kind.LINK} else "30s",
        spark=spark,
    )
    if settings.job == SKEWED.name:
        settings = replace(settings, rate=_UNBOUNDED, batch_rows=64, channel_buffer=1 << 20, input_buffer=4 << 20)
    if scheme == "acks":  # which exactly-once sinks are not for
        settings = replace(settings, sink="plain")
    return Trial(settings, kills, random.getrandbits(32), settings.sink not in ("driver", "plain"), kinds)


def carry_out(trial: Trial) -> Report:
    """Run the job, let it have its faults, let it come to its end, and compare. What goes wrong is raised, with the
    job's story.
    """
    report, random, began = Report(trials=1), Random(trial.seed), time.monotonic()
    with RunningJob(trial.settings) as job:
        job.start()
        job.wait_for_kind("Running")
        while report.killed < trial.kills:
            _do_something(job, random, report, trial)
        report.close(job, job.finish())
    report.seconds = time.monotonic() - began
    return report


def _do_something(job: RunningJob, random: Random, report: Report, trial: Trial) -> None:
    """Wait for a random moment, let something happen, and let the job come back."""
    if random.random() < 0.3:
        job.wait_for_kind("EpochCompleted")
        job.listen(random.uniform(0.0, 0.03))
    else:
        job.listen(random.uniform(0.05, 1.0))
    possible = [kind for kind in trial.kinds if _is_possible(kind, job, trial)]
    had = Counter(fault.kind for fault in report.faults)
    match random.choices(possible, [_WEIGHTS.get(kind, 1) / (1 + had[kind]) ** 2 for kind in possible])[0]:
        case Kind.DRIVER:
            _kill_driver(job, random, report)
        case Kind.WORKER:
            _kill_processes(job, random, report, trial)
        case kind:
            _inject(job, random, report, kind, trial.longest)


_WEIGHTS: Final = {Kind.WORKER: 3}


def _is_possible(kind: Kind, job: RunningJob, trial: Trial) -> bool:
    match kind:
        case Kind.DRIVER:
            return trial.driver_too or trial.kinds == (kind,)
        case Kind.STANDBY:
            return bool(job.course.standbys)
        case Kind.EXECUTOR:
            return bool(trial.settings.spark)
        case _:
            return True


def _kill_driver(job: RunningJob, random: Random, report: Report) -> None:
    report.note(Kind.DRIVER, job)
    report.drivers += 1
    job.kill_driver()
    if random.random() < 0.5:
        job.settings = replace(job.settings, parallelism=random.randint(1, 3))
    began = time.monotonic()
    job.start()
    job.wait_for_kind("Running")
    report.faults[-1].output = (time.monotonic() - began) * 1000


def _kill_processes(job: RunningJob, random: Random, report: Report, trial: Trial) -> None:
    """Perhaps once more while the job comes back."""
    if not _kill_workers(job, random, report, min(2 if random.random() < 0.25 else 1, trial.kills - report.killed)):
        return
    if report.killed < trial.kills and random.random() < 0.4:
        job.wait_for_kind("Deployed", "PartitionReplaced")
        job.listen(random.uniform(0.0, 0.3))
        _kill_workers(job, random, report, 1)
    if not job.course.running:
        job.wait_for_kind("Running")


def _inject(job: RunningJob, random: Random, report: Report, kind: Kind, longest: int) -> None:
    """Let something happen that need not break the job, and go on before it is over, or long after it."""
    lasting = int(_SHORTEST * (longest / _SHORTEST) ** random.random())
    order = _order(kind, Partition(random.randrange(job.settings.parallelism)), lasting, random, job)
    try:
        with recovery.attach(job_folder=job.settings.local) as attached:
            attached.inject(order)
    except (recovery.CommandDeclined, recovery.ConnectionLost):
        report.declined += 1
        return
    report.note(kind, job)
    job.listen(random.uniform(0.0, 1.5) * lasting / 1000 if order.lasting else random.uniform(0.0, 0.5))
    if not job.course.running:
        job.wait_for_kind("Running")


def _order(kind: Kind, partition: Partition, lasting: int, random: Random, job: RunningJob) -> Order:
    others: list[Partition | None] = [Partition(i) for i in range(job.settings.parallelism) if i != partition]
    match kind:
        case Kind.STANDBY:
            return Order(What.KILL, StandbyAt(0))
        case Kind.EXECUTOR:
            return Order(What.KILL, ExecutorOf(partition))
        case Kind.HUNG:
            return Order(What.STOP, WorkerOf(partition), lasting)
        case Kind.CUT_OFF:
            return Order(What.CUT, WorkerOf(partition), lasting)
        case Kind.LINK:
            return Order(What.CUT, LinkBetween(partition, random.choice([*others, None])), lasting)
        case _:
            broken: Target = LinkBetween(partition, random.choice([*others, *others, None]))
            return Order(What.BREAK, broken)


def _kill_workers(job: RunningJob, random: Random, report: Report, most: int) -> bool:
    """Kill some at once, and wait until it is known; whether the job has to come back from it."""
    workers = sorted(job.course.workers)
    victims = random.sample(workers, min(most, len(workers)))
    rollbacks, alone = job.course.restarts, job.course.alone
    killed = [victim for victim in victims if job.kill_worker(victim)]
    report.missed += len(victims) - len(killed)
    assert report.missed < _MANY, f"{report.missed} processes were not there to be killed; {job.story()}"
    report.note(Kind.WORKER, job, len(killed))
    missing = {victim for victim in killed if victim in job.course.workers}
    had_role = job.course.deployed and bool(missing & job.course.placed)
    while missing & job.course.workers.keys():
        job.wait_for_kind("WorkerLost")
    if had_role and (job.course.restarts, job.course.alone) == (rollbacks, alone):
        job.wait_for_kind("AttemptFailed", "PartitionLost")
    return had_role


def _kinds(text: str) -> tuple[Kind, ...]:
    return tuple(Kind(name) for name in text.split(","))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Kill processes of jobs at random moments and compare their output.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", nargs="+", choices=sorted(JOBS), default=sorted(JOBS))
    parser.add_argument("--kinds", type=_kinds, default=tuple(Kind), help=", ".join(kind.value for kind in Kind))
    parser.add_argument("--scheme", choices=get_args(SchemeName), default="passive")
    parser.add_argument("--spark", action="store_true", help="on a standalone cluster of two workers, started for it")
    given = parser.parse_args(arguments)
    if given.scheme == "acks":
        given.jobs = [job for job in given.jobs if JOBS[job].judge_repeats is not None]
    if given.kinds == (Kind.EXECUTOR,) and not given.spark:
        parser.error("there are executors with --spark only")
    folder = Path(tempfile.mkdtemp(prefix="epochcut-kills-"))
    with cluster(folder / "cluster") if given.spark else nullcontext("") as master:
        report = _carry_out_many(given, folder, master)
    print(report, report.table(), sep="\n")
    right = report.compared.complete if given.scheme == "acks" else report.compared.exact
    if right:
        shutil.rmtree(folder)
    return 0 if right else 1


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The master of a cluster on which one executor has room for a whole job."""
    from tests.servers.spark_cluster import Place, running_cluster

    folder.mkdir()
    with running_cluster(folder, _CORES, Place(), (Place(), Place())) as running:
        yield running.master


def _carry_out_many(given: argparse.Namespace, folder: Path, master: str) -> Report:
    """Until there were enough faults, or a row was not right."""
    random, report = Random(given.seed), Report()
    while report.killed < given.kills:
        left = given.kills - report.killed
        trial = draw(random, folder / str(report.trials), left, given.jobs, given.kinds, master, given.scheme)
        said = trial.settings
        print(
            f"{report.trials}: {said.job} to {said.sink}, {said.scheme}, {said.mode} every {said.every}, "
            f"{said.parallelism} partitions, {said.standbys} standbys: ",
            end="",
            flush=True,
        )
        one = carry_out(trial)
        print(one, flush=True)
        report.add(one)
        if not (one.compared.complete if given.scheme == "acks" else one.compared.exact):
            print("\n".join(one.compared.examples), f"see {said.folder}", sep="\n")
            break
        shutil.rmtree(said.folder)
    return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
