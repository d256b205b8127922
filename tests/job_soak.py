"""A job that loses a process every few seconds, for minutes: nothing that it has or leaves grows.

Each second it is measured what the job's tree holds, and what memory, descriptors, threads and files its processes
have. The slope of each measure over the second half of the time is printed, and compared with a limit. At the end the
driver is killed with SIGKILL; 10 s later none of its processes and no temporary file may be there. Then the job is
started again, comes to its end, and every row of its output is compared with the truth.

    python -m tests.job_soak --seconds 600 --every 5
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Final

import numpy as np

from recovery.driver.report.event_log import KEPT
from recovery.offline.job_tree import open_tree
from snapshot.tree.layout import EndNoted, parse
from tests.jobs.comparison import Comparison
from tests.jobs.driver import Settings
from tests.jobs.running_job import RunningJob

_RATE: Final = 1_500
_GONE_WITHIN: Final = 10.0
"""Seconds after the driver's SIGKILL."""
_FEWEST: Final = 20
"""Samples without which no slope is told."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a measure may grow in a minute: so much, and this share of its mean. Only what is beyond it by two
    standard errors of the slope counts.
    """

    least: float
    share: float = 0.0

    def of(self, mean: float) -> float:
        return self.least + self.share * mean


LIMITS: Final[Mapping[str, Limit]] = {
    "tree bytes": Limit(20_000, 0.02),
    "tree files": Limit(2, 0.02),
    "journal files": Limit(2, 0.02),
    "local bytes": Limit(20_000, 0.02),
    "local files": Limit(2, 0.02),
    "temporary files": Limit(0.1),
    "processes": Limit(0.1),
    "driver's memory": Limit(500_000),
    "driver's descriptors": Limit(0.5),
    "driver's threads": Limit(0.2),
    "worker's memory": Limit(1_000_000),
    "worker's descriptors": Limit(0.5),
    "worker's threads": Limit(0.5),
}
"""Of a worker: the mean over all that are there."""


@dataclass(frozen=True, slots=True)
class Slope:
    """How a measure grew, in its unit per minute."""

    name: str
    mean: float
    per_minute: float
    error: float
    judged: bool = True

    @property
    def within(self) -> bool:
        """True if it is not clearly beyond its limit."""
        return not self.judged or self.per_minute - 2 * self.error <= LIMITS[self.name].of(self.mean)

    def line(self) -> str:
        verdict = ("ok" if self.within else "GROWS") if self.judged else "not judged: the events kept are not full yet"
        limit = LIMITS[self.name].of(self.mean)
        return f"{self.name:22}{self.mean:14,.1f}{self.per_minute:+14,.1f}{self.error:12,.1f}{limit:12,.1f}   {verdict}"


HEADING: Final = f"{'measure':22}{'mean':>14}{'per minute':>14}{'error':>12}{'limit':>12}"


def slope(name: str, times: Sequence[float], values: Sequence[float], *, judged: bool = True) -> Slope:
    """The slope of least squares, and its standard error; times are in seconds.

    The error counts neighbouring samples that are alike, as those of a saw's tooth are, for fewer than they are.
    """
    minutes, measured = np.asarray(times) / 60, np.asarray(values, dtype=float)
    around = minutes - minutes.mean()
    spread = float(around @ around)
    growth = float(around @ measured) / spread
    rest = measured - measured.mean() - growth * around
    squares = float(rest @ rest)
    alike = min(max(float(rest[1:] @ rest[:-1]) / squares, 0.0), 0.95) if squares else 0.0
    error = (squares / (len(measured) - 2) / spread * (1 + alike) / (1 - alike)) ** 0.5
    return Slope(name, float(measured.mean()), growth, error, judged)


@dataclass(slots=True)
class Samples:
    """What was measured, and when; all measures at each time."""

    times: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in LIMITS})
    events: list[int] = field(default_factory=list)

    def add(self, at: float, events: int, measured: Mapping[str, float]) -> None:
        """`events` is how many the driver had told by then."""
        self.times.append(at)
        self.events.append(events)
        for name in LIMITS:
            self.values[name].append(measured[name])

    def slopes(self) -> list[Slope]:
        """Over the second half; the driver's memory grows until as many events are kept as ever will be."""
        half = len(self.times) // 2
        full = next((index for index, told in enumerate(self.events) if told >= KEPT), len(self.events))
        found = []
        for name, values in self.values.items():
            since = max(half, full) if name == "driver's memory" else half
            judged = len(values) - since >= _FEWEST
            since = since if judged else half
            found.append(slope(name, self.times[since:], values[since:], judged=judged))
        return found


# --- measuring


@dataclass(frozen=True, slots=True)
class Process:
    """A process as it is told from a later one with the same id."""

    pid: int
    started: int

    @property
    def there(self) -> bool:
        found = _stat(self.pid)
        return found is not None and found.started == self.started and not found.ended


@dataclass(frozen=True, slots=True)
class _Stat:
    parent: int
    started: int
    ended: bool


def _stat(pid: int) -> _Stat | None:
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return _Stat(int(fields[1]), int(fields[19]), fields[0] in "ZX")
    return None


def descendants(of: int) -> list[Process]:
    """All processes that a process has started, and those that they have."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    found = {pid: stat for pid in pids if (stat := _stat(pid))}
    below = {of}
    while more := {child for child, stat in found.items() if stat.parent in below} - below:
        below |= more
    return [Process(child, found[child].started) for child in sorted(below - {of}) if not found[child].ended]


def _files(folder: Path) -> Iterator[int]:
    """The sizes of all files below."""
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                yield Path(parent, name).lstat().st_size


def _memory(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _count(pid: int, what: str) -> float:
    return len(list(Path(f"/proc/{pid}/{what}").iterdir()))


def _mean(pids: Iterable[int], of: str) -> float:
    """Over the processes that are there; some may go while they are looked at."""
    found = []
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(_memory(pid) if of == "memory" else _count(pid, of))
    return fmean(found) if found else 0.0


def measure(job: RunningJob, driver: int, temporary: Path) -> dict[str, float]:
    """All measures now."""
    folder = Path(job.settings.folder)
    tree, local, workers = list(_files(folder / "tree")), list(_files(folder / "local")), job.course.workers.values()
    return {
        "tree bytes": sum(tree),
        "tree files": len(tree),
        "journal files": len(list(_files(folder / "tree" / "journal"))),
        "local bytes": sum(local),
        "local files": len(local),
        "temporary files": len(list(temporary.iterdir())),
        "processes": len(descendants(driver)),
        "driver's memory": _mean([driver], "memory"),
        "driver's descriptors": _mean([driver], "fd"),
        "driver's threads": _mean([driver], "task"),
        "worker's memory": _mean(workers, "memory"),
        "worker's descriptors": _mean(workers, "fd"),
        "worker's threads": _mean(workers, "task"),
    }


# --- the job


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it."""

    kills: int
    rollbacks: int
    epochs: int
    slopes: Sequence[Slope]
    orphans: int
    orphan_bytes: int
    left: Sequence[str]
    """What was still there after the driver's SIGKILL."""
    unreferenced: Sequence[str]
    """Files of the tree to which no epoch refers at the end, and that were there when it was last looked through."""
    compared: Comparison

    @property
    def good(self) -> bool:
        flat = all(one.within for one in self.slopes)
        return flat and not self.left and not self.unreferenced and self.compared.exact

    def __str__(self) -> str:
        found = self.compared
        return "\n".join(
            [
                HEADING,
                *(one.line() for one in self.slopes),
                f"{self.kills} kills, {self.rollbacks} roll-backs, {self.epochs} epochs; {self.orphans} files of "
                f"{self.orphan_bytes:,} bytes deleted that killed attempts had uploaded",
                f"{_GONE_WITHIN:.0f} s after the driver's SIGKILL: {', '.join(self.left) or 'nothing is left'}",
                f"in the tree at the end, and needed by no epoch: {', '.join(self.unreferenced) or 'nothing'}",
                f"{found.rows} rows compared: {found.lost} lost, {found.twice} twice, {found.wrong} wrong",
            ]
        )


def soak(folder: Path, seconds: float, every: float, seed: int) -> Report:
    """Run the job, kill a process of it every so many seconds, and see what grows."""
    temporary = folder / "temporary"
    temporary.mkdir()
    settings = Settings(
        folder=str(folder / "job"),
        job="many_keys",
        rows=int(_RATE * (seconds + 60)),
        rate=_RATE,
        standbys=1,
        every="100ms",
    )
    with RunningJob(settings, {"TMPDIR": str(temporary)}) as job:
        job.start()
        job.wait_for_kind("EpochCommitted")
        driver = next(one.pid for one in descendants(os.getpid()) if _is_driver(one.pid))
        samples, kills = _disturb(job, driver, temporary, seconds, every, Random(seed))
        (folder / "samples.json").write_text(json.dumps({"seconds": samples.times, **samples.values}))
        left = _kill_driver(job, driver, temporary)
        job.start()
        job.wait_for_kind("Running")
        job.listen(4)
        began = time.time()
        job.listen(11)  # the tree is looked through a second after it runs, and again ten seconds later
        compared = job.finish()
        swept = [event for event in job.events if event["event"] == "OrphansDeleted"]
        return Report(
            kills,
            job.restarts,
            sum(event["event"] == "EpochCompleted" for event in job.events),
            samples.slopes(),
            sum(_number(event["files"]) for event in swept),
            sum(_number(event["bytes"]) for event in swept),
            left,
            unreferenced(folder / "job" / "tree", before=began),
            compared,
        )


def _disturb(
    job: RunningJob, driver: int, temporary: Path, seconds: float, every: float, random: Random
) -> tuple[Samples, int]:
    samples, kills = Samples(), 0
    began = time.monotonic()
    next_kill = began + every
    while (now := time.monotonic()) - began < seconds:
        if now >= next_kill:
            next_kill += every
            workers = sorted(job.course.workers)
            kills += bool(workers) and job.kill_worker(random.choice(workers))
        samples.add(now - began, len(job.events), measure(job, driver, temporary))
        job.listen(max(0.0, now + 1 - time.monotonic()))
    return samples, kills


def _kill_driver(job: RunningJob, driver: int, temporary: Path) -> list[str]:
    processes, killed_at = descendants(driver), time.monotonic()
    job.kill_driver()
    time.sleep(max(0.0, killed_at + _GONE_WITHIN - time.monotonic()))
    left = [f"process {one.pid}" for one in processes if one.there]
    if (took := time.monotonic() - killed_at) > _GONE_WITHIN + 1:
        left.append(f"a process until {took:.1f} s after it")
    return [*left, *(str(path) for path in sorted(temporary.rglob("*")))]


def unreferenced(tree: Path, before: float = inf) -> list[str]:
    """The files in `shared/` and `epochs/` of before this time to which no retained epoch refers, and unfinished ones.

    What a removal names is left out: a job that ends leaves that to its next start; and what says how a journal ended.
    """
    opened = open_tree(str(tree))
    retained, removals = opened.state.retained, opened.state.removals
    known = {record.manifest for record in retained}.union(*(opened.manifest(one).references() for one in retained))
    known = known.union(*((*removal.files, *removal.manifests) for removal in removals))
    there = [path for path in tree.rglob("*") if path.is_file() and path.stat().st_mtime < before]
    files = [path.relative_to(tree).as_posix() for path in there]
    files = [path for path in files if not isinstance(parse(path), EndNoted)]
    return [path for path in sorted(files) if path.startswith(("shared/", "epochs/")) and path not in known]


def _is_driver(pid: int) -> bool:
    return b"tests.jobs.driver" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Kill processes of a job for minutes, and see whether anything grows.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--every", type=float, default=5, help="seconds from one kill to the next")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.seconds < 2 * _FEWEST:
        parser.error(f"slopes need {2 * _FEWEST} seconds at least")
    folder = Path(tempfile.mkdtemp(prefix="epochcut-soak-"))
    report = soak(folder, given.seconds, given.every, given.seed)
    print(report)
    if report.good:
        shutil.rmtree(folder)
    else:
        print(*report.compared.examples, f"see {folder}", sep="\n")
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
