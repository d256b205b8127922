"""Jobs whose processes are killed at random moments, again and again, and their output compared with the truth.

What always holds: what is drawn follows from the seed alone, though what a moment meets does not; every row of every
job's output is compared.

    python -m tests.job_kills --kills 200 --seed 1
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from tests.jobs.catalogue import JOBS
from tests.jobs.comparison import Comparison
from tests.jobs.driver import Mode, Settings
from tests.jobs.job import SinkKind
from tests.jobs.running_job import Phase, RunningJob
from tests.jobs.skewed import SKEWED

SINKS: Final[tuple[SinkKind, ...]] = ("jsonl", "parquet", "driver")
MODES: Final[tuple[Mode, ...]] = ("aligned", "unaligned", "alignment_timeout")

_RATE: Final = 4_000
_UNBOUNDED: Final = 1e9
_ROWS_PER_KILL: Final = 5_000


@dataclass(frozen=True, slots=True)
class Trial:
    """One job, how often something of it is killed, and the seed of the moments."""

    settings: Settings
    kills: int
    seed: int
    driver_too: bool
    """Rows that the driver itself was given die with it, so it is killed only where output is in files. The next one
    may have another parallelism."""


@dataclass(slots=True)
class Report:
    """What was done, and what came of it."""

    kills: Counter[Phase] = field(default_factory=Counter)
    """By what the job was at."""
    drivers: int = 0
    """Kills of the driver, among the others."""
    restarts: int = 0
    trials: int = 0
    seconds: float = 0.0
    compared: Comparison = field(default_factory=lambda: Comparison(0))

    @property
    def killed(self) -> int:
        return self.kills.total()

    def add(self, other: Report) -> None:
        self.kills += other.kills
        self.drivers += other.drivers
        self.restarts += other.restarts
        self.trials += other.trials
        self.seconds += other.seconds
        self.compared += other.compared

    def __str__(self) -> str:
        phases = ", ".join(f"{self.kills[phase]} {phase.value}" for phase in Phase)
        found = self.compared
        return (
            f"{self.killed} kills ({phases}; {self.drivers} of them of the driver) in {self.trials} jobs, "
            f"{self.restarts} rollbacks; {found.rows} rows compared: {found.lost} lost, {found.twice} twice, "
            f"{found.wrong} wrong; {self.seconds:.0f} s"
        )


def draw(random: Random, folder: Path, kills: int, jobs: Sequence[str]) -> Trial:
    """A job with random parameters, and at most so many kills."""
    sink = random.choice(SINKS)
    kills = min(kills, random.randint(4, 10))
    settings = Settings(
        folder=str(folder),
        job=random.choice(jobs),
        rows=_ROWS_PER_KILL * (kills + 1),
        rate=_RATE,
        sink=sink,
        parallelism=random.randint(1, 3),
        standbys=random.choice((0, 0, 1)),
        mode=random.choice(MODES),
        every=random.randint(100, 400),
    )
    if settings.job == SKEWED.name:
        settings = replace(settings, rate=_UNBOUNDED, batch_rows=64, channel_buffer=1 << 20, input_buffer=4 << 20)
    return Trial(settings, kills, random.getrandbits(32), driver_too=sink != "driver")


def carry_out(trial: Trial) -> Report:
    """Run the job, kill, let it come to its end, and compare. What goes wrong is raised, with the job's story."""
    report, random, began = Report(trials=1), Random(trial.seed), time.monotonic()
    with RunningJob(trial.settings) as job:
        job.start()
        job.wait_for_kind("Running")
        while report.killed < trial.kills:
            _kill_something(job, random, report, trial)
        report.compared = job.finish()
        report.restarts = job.restarts
    report.seconds = time.monotonic() - began
    return report


def _kill_something(job: RunningJob, random: Random, report: Report, trial: Trial) -> None:
    """Wait for a random moment, kill, perhaps once more while the job comes back, and let it come back."""
    if random.random() < 0.3:
        job.wait_for_kind("EpochCompleted")
        job.listen(random.uniform(0.0, 0.03))
    else:
        job.listen(random.uniform(0.05, 1.0))
    if trial.driver_too and random.random() < 0.15:
        report.kills[job.course.phase] += 1
        report.drivers += 1
        job.kill_driver()
        if random.random() < 0.5:
            job.settings = replace(job.settings, parallelism=random.randint(1, 3))
        job.start()
        job.wait_for_kind("Running")
        return
    if not _kill_workers(job, random, report, min(2 if random.random() < 0.25 else 1, trial.kills - report.killed)):
        return
    if report.killed < trial.kills and random.random() < 0.4:
        job.wait_for_kind("Deployed")
        job.listen(random.uniform(0.0, 0.3))
        _kill_workers(job, random, report, 1)
    if not job.course.running:
        job.wait_for_kind("Running")


def _kill_workers(job: RunningJob, random: Random, report: Report, most: int) -> bool:
    """Kill some at once, and wait until it is known; whether the job has to come back from it."""
    workers = sorted(job.course.workers)
    victims = random.sample(workers, min(most, len(workers)))
    phase, rollbacks = job.course.phase, job.course.restarts
    killed = [victim for victim in victims if job.kill_worker(victim)]
    report.kills[phase] += len(killed)
    missing = {victim for victim in killed if victim in job.course.workers}
    had_role = job.course.deployed and bool(missing & job.course.placed)
    while missing & job.course.workers.keys():
        job.wait_for_kind("WorkerLost")
    if had_role and job.course.restarts == rollbacks:
        job.wait_for_kind("AttemptFailed")
    return had_role


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Kill processes of jobs at random moments and compare their output.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", nargs="+", choices=sorted(JOBS), default=sorted(JOBS))
    given = parser.parse_args(arguments)
    random, report = Random(given.seed), Report()
    folder = Path(tempfile.mkdtemp(prefix="epochcut-kills-"))
    while report.killed < given.kills:
        trial = draw(random, folder / str(report.trials), given.kills - report.killed, given.jobs)
        said = trial.settings
        print(
            f"{report.trials}: {said.job} to {said.sink}, {said.mode} every {said.every} ms, {said.parallelism} "
            f"partitions, {said.standbys} standbys: ",
            end="",
            flush=True,
        )
        one = carry_out(trial)
        print(one, flush=True)
        report.add(one)
        if not one.compared.exact:
            print("\n".join(one.compared.examples), f"see {said.folder}", sep="\n")
            break
        shutil.rmtree(said.folder)
    print(report)
    if report.compared.exact:
        shutil.rmtree(folder)
    return 0 if report.compared.exact else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
