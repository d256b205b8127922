"""Commands that change trees, killed as real processes at random moments and at every named point, and done again.

Invariant: what is drawn follows from the seed alone, though what a moment meets does not. After each kill the
tree is verified, byte by byte and key by key, and the command is repeated; at the end a job goes on from what each
command has left, and its output is compared with the truth.

    python -m tests.savepoint_kills --kills 100 --seed 1
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from recovery.command.exits import Exit
from recovery.driver.tree.evidence import DamagedTree
from recovery.driver.tree.identity import BirthLost, JobMoved, WrongJob
from recovery.offline import fail_points
from recovery.offline.job_tree import JobTree, open_tree
from recovery.savepoints.gc import plan_cleanup
from recovery.savepoints.repairing import repair
from recovery.savepoints.rescaling import parallelism_of
from recovery.savepoints.verifying import verify, what_to_verify
from snapshot.host.faults.crash_points import VARIABLE, crashing
from snapshot.tree.layout import JOB
from statebackend.fail_points import BLOB_UNFINISHED, DELTA_UPLOADED
from statebackend.stores.store import StoreUnavailable
from tests.stopped_trees import ROWS, Stopped, stop_one

PATIENCE: Final = 180.0
PRELOADED: Final = ["recovery.command.main", "recovery.savepoints.editing", "pandas"]
_KEYS: Final = 61
"""Of the job whose trees these are."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A command for a tree, with a second place where it needs one.

    `points` are those that it comes to. `ended` checks what there is when it was done for good; `goes_on` says where
    the job then goes on, None if its output is not what it would have been.
    """

    arguments: Callable[[Stopped, str, Random], list[str]]
    points: Sequence[str]
    ended: Callable[[Stopped, str, list[str]], bool]
    goes_on: Callable[[Stopped, str], str | None] = lambda stopped, _: stopped.uri
    prepare: Callable[[Stopped], object] = lambda _: None
    mends: bool = False
    """Until it is done, the tree is refused."""


def _rescaled(stopped: Stopped, _: str, given: list[str]) -> bool:
    found = stopped.tree.find()
    return parallelism_of(found.manifest) == int(given[-1]) and found.record.epoch in stopped.tree.savepoints


def _copied(stopped: Stopped, into: str, _: list[str]) -> bool:
    return open_tree(into).record().epoch == stopped.tree.record().epoch


def _moved(stopped: Stopped, into: str, _: list[str]) -> bool:
    left = [path.name for path in Path(stopped.uri).rglob("*") if path.is_file()]
    told = [name for name in left if not name.startswith("summary-")]
    return bool(open_tree(into).state.usable) and told == ["moved.json"]


def _litter(stopped: Stopped) -> None:
    """What commands that were killed would have left: files of a fenced generation that nobody refers to."""
    shared = Path(stopped.uri) / "shared"
    some = min(shared.iterdir())
    for number in range(1, 30):
        shutil.copy(some, shared / f"1-0-0-{9_000 + number}.sst")
    (Path(stopped.uri) / "epochs" / "1-1-abc").mkdir()
    (Path(stopped.uri) / "epochs" / "1-1-abc" / "manifest.json").write_text("{}")


def _lose(stopped: Stopped) -> None:
    """The newest entries of the journal, and the job's name."""
    for entry in sorted(Path(stopped.uri, "journal").glob("0*.json"))[-4:]:
        entry.unlink()
    Path(stopped.uri, JOB).unlink()


def _mended(stopped: Stopped, _: str, __: list[str]) -> bool:
    return not repair(stopped.uri, dry_run=True).damages


def _clean(stopped: Stopped, _: str, __: list[str]) -> bool:
    return not plan_cleanup(stopped.tree).doomed


_IN_TREE: Final = (fail_points.TAKEN_OVER, fail_points.NEW_MANIFEST_WRITTEN, fail_points.NEW_EPOCH_ENTERED)
_NEW_TREE: Final = (
    BLOB_UNFINISHED,
    fail_points.TREE_BEGUN,
    fail_points.FILE_COPIED,
    fail_points.TREE_DECIDED,
    fail_points.NEW_MANIFEST_WRITTEN,
    fail_points.JOURNAL_BEGUN,
    fail_points.JOB_BORN,
)

VERBS: Final = {
    "rescale": Verb(
        lambda stopped, _, random: ["--checkpoints", stopped.uri, "--to", str(random.choice((1, 3, 4, 7)))],
        (BLOB_UNFINISHED, *_IN_TREE),
        _rescaled,
    ),
    "copy": Verb(
        lambda stopped, into, _: ["--checkpoints", stopped.uri, "--into", into],
        _NEW_TREE,
        _copied,
        lambda _, into: into,
    ),
    "fork": Verb(
        lambda stopped, into, _: ["--checkpoints", stopped.uri, "--into", into],
        _NEW_TREE,
        lambda _, into, __: bool(open_tree(into).state.usable),
    ),
    "move": Verb(
        lambda stopped, into, _: ["--checkpoints", stopped.uri, "--into", into],
        (*_NEW_TREE, fail_points.TAKEN_OVER, fail_points.JOURNAL_CLOSED, fail_points.MOVED_AWAY),
        _moved,
        lambda _, into: into,
    ),
    "gc": Verb(
        lambda stopped, _, __: ["--checkpoints", stopped.uri],
        (fail_points.GARBAGE_COLLECTED,),
        _clean,
        prepare=_litter,
    ),
    "edit": Verb(
        lambda stopped, _, random: [
            *("--checkpoints", stopped.uri, "--uid", "numbers", "--state", "total"),
            *("--key", str(random.randrange(_KEYS)), "--set", str(random.getrandbits(30))),
        ],
        (BLOB_UNFINISHED, DELTA_UPLOADED, fail_points.CHANGES_STORED, *_IN_TREE),
        lambda stopped, _, __: stopped.tree.record().epoch in stopped.tree.savepoints,
        lambda _, __: None,
    ),
    "repair": Verb(
        lambda stopped, _, __: ["--checkpoints", stopped.uri],
        (
            BLOB_UNFINISHED,
            fail_points.REPAIR_BEGUN,
            fail_points.PUT_ASIDE,
            fail_points.JOURNAL_MADE,
            fail_points.REPLACED_GONE,
            fail_points.NAME_MADE,
        ),
        _mended,
        prepare=_lose,
        mends=True,
    ),
}


@dataclass(slots=True)
class Report:
    """What was done, by verb."""

    kills: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    """Commands that were done before they could be killed."""
    whole: Counter[str] = field(default_factory=Counter)
    """Killed when what they were to make was there as a whole already."""
    jobs: int = 0
    rows: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [
            f"{verb}: {self.kills[verb]} killed ({self.whole[verb]} of them when all was there), "
            f"{self.survived[verb]} done before"
            for verb in VERBS
            if self.kills[verb] or self.survived[verb]
        ]
        lines.append(
            f"{self.kills.total()} kills; every tree sound afterwards, every command repeated; {self.jobs} jobs went "
            f"on, {self.rows} rows compared: 0 lost, 0 twice; {self.seconds:.0f} s"
        )
        return "\n".join(lines)


class NotSound(AssertionError):
    """What a killed command has left is not as it should be."""


def carry_out(kills: int, seed: int, folder: Path, verbs: Sequence[str], jobs: bool = True) -> Report:
    """Kill so many commands; `NotSound` for the first that leaves what it should not. `jobs`: let jobs go on."""
    random, report, began = Random(seed), Report(), time.monotonic()
    original = stop_one(folder / "original")
    took = {verb: _duration(original, folder / f"timed-{verb}", verb, random) for verb in verbs}
    last: dict[str, tuple[Stopped, str]] = {}
    number = 0
    while report.kills.total() < kills:
        verb, number = verbs[number % len(verbs)], number + 1
        stopped = original.copied(folder / f"trial-{number}")
        VERBS[verb].prepare(stopped)
        into = str(stopped.folder / "into")
        arguments = VERBS[verb].arguments(stopped, into, random)
        if random.random() < 0.5:
            point, times = random.choice(VERBS[verb].points), random.choice((1, 1, 2, 3))
            crash, after = f"{point}:{times}:{stopped.folder / 'crashed'}", PATIENCE
        else:
            crash, after = "", random.uniform(0.0, took[verb])
        code, said = _run(verb, arguments, stopped.folder, crash, after)
        where = (
            f"seed {seed}, trial {number}: {verb} {' '.join(arguments)}, crash {crash!r}, after {after:.3f} s: {said}"
        )
        if code == -9:
            report.kills[verb] += 1
        elif code == Exit.DONE:
            report.survived[verb] += 1
        else:
            raise NotSound(f"it ended with {code}; {where}")
        if not VERBS[verb].mends or code == Exit.DONE or not _is_refused(stopped):
            _check(stopped, into, where)
        killed = code < 0
        code, said = _run(verb, arguments, stopped.folder, "", PATIENCE)
        if code == Exit.EXISTS and verb in ("copy", "fork"):
            report.whole[verb] += killed
        elif code != Exit.DONE:
            raise NotSound(f"it cannot be repeated, {code}: {said}; {where}")
        _check(stopped, into, where)
        if _tree(into) is None and str(into) in arguments:
            raise NotSound(f"it was repeated, and there is no job, {code}: {said}; {where}")
        if not VERBS[verb].ended(stopped, into, arguments):
            raise NotSound(f"it was repeated, and is not done; {where}")
        if verb in last:
            shutil.rmtree(last[verb][0].folder)
        last[verb] = (stopped, into)
    for verb, (stopped, into) in last.items() if jobs else ():
        uri = VERBS[verb].goes_on(stopped, into)
        if uri is not None:
            compared = stopped.finish(uri, random.choice((1, 2, 3)))
            if not compared.exact or compared.rows < ROWS:
                raise NotSound(f"the job does not go on exactly after {verb}: {compared}")
            report.jobs, report.rows = report.jobs + 1, report.rows + compared.rows
    report.seconds = time.monotonic() - began
    return report


def _check(stopped: Stopped, into: str, where: str) -> None:
    """Each place has a job that is sound as a whole, or none; and at one of them there is one."""
    there = [tree for tree in (_tree(stopped.uri), _tree(into)) if tree is not None]
    if not there:
        raise NotSound(f"the job is nowhere; {where}")
    for tree in there:
        damages = verify(tree, what_to_verify(tree)).damages
        if damages or not tree.state.usable:
            raise NotSound(f"{tree.uri}: {damages}; {where}")


def _is_refused(stopped: Stopped) -> bool:
    try:
        open_tree(stopped.uri)
    except (BirthLost, DamagedTree):
        return True
    return False


def _tree(uri: str) -> JobTree | None:
    try:
        return open_tree(uri)
    except (JobMoved, WrongJob, StoreUnavailable):
        return None


def _duration(original: Stopped, folder: Path, verb: str, random: Random) -> float:
    """So many seconds the command takes if nobody kills it."""
    stopped = original.copied(folder)
    VERBS[verb].prepare(stopped)
    arguments = VERBS[verb].arguments(stopped, str(folder / "into"), random)
    began = time.monotonic()
    code, said = _run(verb, arguments, folder, "", PATIENCE)
    if code != Exit.DONE:
        raise NotSound(f"{verb} ended with {code}: {said}")
    took = time.monotonic() - began
    shutil.rmtree(folder)
    return took


def _run(verb: str, arguments: list[str], folder: Path, crash: str, after: float) -> tuple[int, str]:
    """The command as a process, which is killed after so many seconds; how it ended, and what it said."""
    log = folder / "said.txt"
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_command, args=([verb, *arguments], crash, str(log)))
    process.start()
    process.join(after)
    if process.is_alive():
        process.kill()
        process.join()
        if after == PATIENCE:
            raise NotSound(f"it does not end in {after} s: {verb} {' '.join(arguments)}, crash {crash!r}")
    code = process.exitcode
    assert code is not None
    return code, log.read_text() if log.exists() else ""


def _command(arguments: list[str], crash: str, log: str) -> None:
    """In the process."""
    from recovery.command.main import main

    points = (*fail_points.POINTS, BLOB_UNFINISHED, DELTA_UPLOADED)
    with Path(log).open("w") as file, redirect_stdout(file), redirect_stderr(file), crashing({VARIABLE: crash}, points):
        code = main(arguments)
    os._exit(code)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description="Kill commands that change trees at random, and verify what they leave.",
        epilog="example: python -m tests.savepoint_kills --kills 100 --seed 1",
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbs", nargs="+", choices=sorted(VERBS), default=list(VERBS))
    given = parser.parse_args(arguments)
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOADED)
    folder = Path(tempfile.mkdtemp(prefix="epochcut-commands-"))
    try:
        report = carry_out(given.kills, given.seed, folder, given.verbs)
    except NotSound as error:
        print(f"{error}\nsee {folder}")
        return 1
    print(report)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
