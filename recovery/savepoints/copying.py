"""A job's epoch in a tree of its own: forked as a new job, copied as the same one, or moved with all that the job has.

Invariant: every file is checked on its way, so a tree that is there is sound; what is interrupted leaves a
place that is no job, and can be done again. The origin stays as it is, but for a move: that closes its journal when
all is copied, as the last entry of the generation that it has claimed, so that a driver that was started meanwhile
stops the move, and none can be started any more when the job is born at the new place.

A closed journal is never deleted but compacted, so that a writer that was about to write an entry finds it, however
late it is; a job that comes back begins its journal behind it. What remains: one that is paused between looking whether
the place is still to be emptied and the one deletion that follows, for as long as another one ends the move and the job
is moved back here, takes away that one file of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from recovery.decisions.notes import COPY, MOVE, from_json, provenance
from recovery.driver.tree.identity import Birth, JobMoved, JobOnItsWay, WrongJob, mark_moved, new_birth
from recovery.driver.tree.manifests import without_output
from recovery.driver.tree.owned import FencedOff
from recovery.offline import fail_points
from recovery.offline.epoch_choice import Chosen, choose, go_back
from recovery.offline.fail_points import reached
from recovery.offline.job_tree import NEWEST, JobTree, NoSuchEpoch, UnusableEpoch, journal_of, open_tree
from recovery.offline.new_tree import KeptEpoch, NewTree, begin, check_free, make_whole
from recovery.offline.reading import pinned
from recovery.offline.stopped_job import closed_job, refuse_if_it_runs, take_over
from recovery.offline.tree_marks import is_mark
from recovery.scratch import scratch_folder
from snapshot.ids import JobId
from snapshot.journal.entries import Closed, JournalError
from snapshot.journal.state import NO_OUTPUT, OutputMade
from snapshot.tree.layout import MOVED, EndNoted, ManifestFile, SharedFile, parse
from snapshot.tree.manifest import Manifest, ManifestKind, StoredFile
from statebackend.files import FileRef
from statebackend.ids import Attempt, Epoch, Generation
from statebackend.snapshots.transfer import Checked, copy_all
from statebackend.stores.fsspec_store import absolute
from statebackend.stores.limited_store import find_limited
from statebackend.stores.store import BlobStore, StoreUnavailable, exists

FORK: Final = "fork"

_SECONDS: Final = 60.0
_LOOKS: Final = 20

Begun = Callable[[int], Callable[[int], object]]
"""Is told how many bytes will be copied, and gives what is then told how many more have been."""

Change = Callable[[NewTree, Manifest], Manifest]
"""Makes of the manifest of a new tree, whose files are there, the one that it is to have."""


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """A plan of a copy: what goes where. `output` counts the transactions that are not known to be committed."""

    how: str
    uri: str
    into: str
    job: JobId
    epoch: Epoch
    becomes: JobId
    epochs: int
    files: int
    bytes: int
    output: int


@dataclass(frozen=True, slots=True)
class Copied:
    """The made copy: `made` is the newest epoch of the new tree, None for a dry run.

    `passed_over` are newer epochs that cannot be used, and older ones that a move leaves behind, with the reasons;
    `gives_up` are complete ones that the job does not come back to. `repeats` is output that a job which goes on from
    the new tree makes once more; if it `asks`, it is not started before that is accepted.
    """

    plan: CopyPlan
    made: Epoch | None
    passed_over: tuple[str, ...]
    gives_up: tuple[Epoch, ...] = ()
    repeats: OutputMade = NO_OUTPUT
    asks: bool = False


def fork(
    tree: JobTree,
    epoch: str,
    into: str,
    *,
    name: str | None = None,
    accept_duplicates: bool = False,
    dry_run: bool = False,
    begun: Begun = lambda _: lambda _: None,
    change: Change | None = None,
) -> Copied:
    """Make a new job of an epoch, which may be of a job that runs. Its output that is not yet committed stays with it.

    The output that the job has made after an older epoch is made once more by the fork, if that writes to the same
    places, so it is to be accepted.

    `change` may write files into the new tree, where all that the epoch refers to is by then, and gives the manifest
    that it is to have.

    Raises `TargetExists`, what `epoch_choice.choose` raises, `DamagedFile` and `MissingFile` for a file that is not as
    it was written, and what the stores raise: then, and after a crash, there is no job at the new place.
    """
    with _held(tree, epoch, accept_duplicates=accept_duplicates, dry_run=dry_run) as chosen:
        birth = new_birth(name or tree.birth.name, tree.birth.max_parallelism)
        source = chosen.found.record.epoch
        forked = Epoch(_next_generation(chosen.tree), source.number + 1)
        now = _now()
        manifest = replace(
            without_output(chosen.manifest),
            job=birth.job,
            epoch=forked,
            attempt=Attempt(0),
            kind=ManifestKind.SAVEPOINT,
            created_at=now,
            parent=source,
            notes=provenance(chosen.found.manifest, FORK, tree.uri, now),
        )
        newest = KeptEpoch(manifest)
        return _in_its_own_tree(tree, into, chosen, newest, birth, forked.generation, FORK, dry_run, begun, change)


def copy(
    tree: JobTree,
    epoch: str,
    into: str,
    *,
    accept_duplicates: bool = False,
    dry_run: bool = False,
    begun: Begun = lambda _: lambda _: None,
) -> Copied:
    """Make the same job once more, with this epoch as its only one: an archive, as only one of the two may be started.

    The job may run. Raises as `fork` does, and `StartRefused` where a newest epoch that is damaged would be passed
    over. One that is named is copied whatever came after it: the copy knows of all output that the job has made so far,
    and asks when it is started, unless repeated output is accepted here.
    """
    accepted = accept_duplicates or epoch != NEWEST or tree.is_older_copy
    with _held(tree, epoch, accept_duplicates=accepted, dry_run=dry_run) as chosen:
        manifest = replace(chosen.manifest, notes=provenance(chosen.found.manifest, COPY, tree.uri, _now()))
        newest, generation = KeptEpoch(manifest, output=chosen.found.record.output), _next_generation(chosen.tree)
        return _in_its_own_tree(
            tree, into, chosen, newest, tree.birth, generation, COPY, dry_run, begun, asks=not accept_duplicates
        )


def move(
    tree: JobTree,
    into: str,
    *,
    accept_duplicates: bool = False,
    dry_run: bool = False,
    job_folder: Path | None = None,
    begun: Begun = lambda _: lambda _: None,
) -> Copied:
    """Move the job, with all its epochs and savepoints, to another place; it must not run.

    Raises as `copy` does, `JobRuns`, `FencedOff` if the job was started meanwhile, which then goes on here, and
    `JobOnItsWay` if it is being moved to somewhere else. A crash leaves the job here or there, or on its way, which is
    nowhere: doing it again goes on, and a program that looks for the job here finds where it is.
    """
    refuse_if_it_runs(tree, job_folder)
    to, closed = absolute(into), tree.state.moved_to
    if closed not in ("", to):
        raise JobOnItsWay(closed)
    if not closed:
        check_free(into, tree.birth.job)
    as_it_is = tree.is_older_copy and not accept_duplicates  # nobody goes back: it will ask as it would here
    chosen = choose(tree, accept_duplicates=accept_duplicates or as_it_is)
    if dry_run:
        older, left = _older(tree, chosen)
        plan = _plan(tree, into, chosen, tree.birth, MOVE, [*(one.manifest for one in older), chosen.manifest])
        passed_over = (*map(str, chosen.found.passed_over), *left)
        return Copied(plan, None, passed_over, chosen.gives_up, chosen.repeats, as_it_is)
    job = closed_job(tree) if closed else take_over(tree, MOVE, job_folder=job_folder)
    if as_it_is:
        chosen = choose(job.tree, accept_duplicates=True)
    else:
        chosen = go_back(job, accept_duplicates=accept_duplicates)
    older, left = _older(job.tree, chosen)
    manifest = replace(chosen.manifest, notes=provenance(chosen.found.manifest, MOVE, tree.uri, _now()))
    manifests = [*(one.manifest for one in older), manifest]
    plan = _plan(tree, into, chosen, tree.birth, MOVE, manifests)
    if not (closed and _is_there(tree, into, manifest.epoch)):
        new = begin(into, tree.birth, job.generation, MOVE, tree.birth.job)
        _copy_files(tree, new, manifests, begun(plan.bytes))
        if not closed:
            job.propose(Closed(job.generation, to))
            reached(fail_points.JOURNAL_CLOSED)
        newest = KeptEpoch(manifest, output=chosen.found.record.output)
        new.finish(newest, older, job.tree.state.made_elsewhere)
    now = journal_of(tree.store).read()
    if (now.moved_to, now.generation) != (to, job.generation):  # another one has ended the move, and the job came back
        raise FencedOff(now.generation)
    mark_moved(tree.store, tree.birth, to)
    reached(fail_points.MOVED_AWAY)
    _empty(tree.store)
    passed_over = (*map(str, chosen.found.passed_over), *left)
    return Copied(plan, manifest.epoch, passed_over, chosen.gives_up, chosen.repeats, as_it_is)


def finish_move(uri: str, into: str, moved: JobMoved) -> None:
    """Delete what a move that was interrupted at its very end has left; `JobMoved` if it went elsewhere."""
    if moved.to != absolute(into):
        raise moved
    _empty(find_limited(uri, _SECONDS))


def files_of(manifests: Iterable[Manifest]) -> tuple[FileRef | StoredFile, ...]:
    """Return all files that these epochs refer to, each once."""
    found: dict[str, FileRef | StoredFile] = {}
    for manifest in manifests:
        for file in manifest.files():
            found.setdefault(file.path, file)
    return tuple(found.values())


def _next_generation(tree: JobTree) -> Generation:
    """Return a new tree's generation, so that no name used by the origin is used again, there or by its job."""
    return Generation(tree.state.generation + 1)


@contextmanager
def _held(tree: JobTree, which: str, *, accept_duplicates: bool, dry_run: bool) -> Iterator[Chosen]:
    """Choose an epoch, and pin it while it is copied; a newest one that the job removes before is chosen anew."""
    with ExitStack() as reading:
        for _ in range(_LOOKS):
            chosen = choose(tree, which, accept_duplicates=accept_duplicates)
            epoch = chosen.found.record.epoch
            try:
                if not dry_run:
                    reading.enter_context(pinned(tree, epoch))
                break
            except NoSuchEpoch:
                tree = tree.look_again()
                if which != NEWEST or any(record.epoch == epoch for record in tree.state.usable):
                    raise
        else:
            raise StoreUnavailable(
                f"{tree.uri}: the job removes its epochs more quickly than they can be kept; try again"
            )
        yield chosen


def _in_its_own_tree(
    tree: JobTree,
    into: str,
    chosen: Chosen,
    newest: KeptEpoch,
    birth: Birth,
    generation: Generation,
    how: str,
    dry_run: bool,
    begun: Begun,
    change: Change | None = None,
    *,
    asks: bool = False,
) -> Copied:
    manifest = newest.manifest
    plan = _plan(tree, into, chosen, birth, how, [manifest])
    passed_over = tuple(map(str, chosen.found.passed_over))
    if dry_run:
        check_free(into, tree.birth.job)
        return Copied(plan, None, passed_over, repeats=chosen.repeats, asks=asks and chosen.repeats.epochs > 0)
    new = begin(into, birth, generation, how, tree.birth.job)
    _copy_files(tree, new, [manifest], begun(plan.bytes))
    changed = newest if change is None else replace(newest, manifest=change(new, manifest))
    repeats = _made_since(tree, chosen) if asks else chosen.repeats
    new.finish(changed, made_elsewhere=repeats if asks else NO_OUTPUT)
    return Copied(plan, manifest.epoch, passed_over, repeats=repeats, asks=asks and repeats.epochs > 0)


def _made_since(tree: JobTree, chosen: Chosen) -> OutputMade:
    """Return the output that a running job has made after an epoch by now, while the epoch was copied."""
    now = tree.look_again().state
    still = any(record.epoch == chosen.epoch for record in now.usable)
    return now.output_after(chosen.found.record) if still else chosen.repeats


def _plan(tree: JobTree, into: str, chosen: Chosen, birth: Birth, how: str, manifests: Sequence[Manifest]) -> CopyPlan:
    files = files_of(manifests)
    output = sum(len(part.committables) for operator in chosen.manifest.operators for part in operator.subtasks)
    return CopyPlan(
        how,
        tree.uri,
        into,
        tree.birth.job,
        chosen.found.record.epoch,
        birth.job,
        len(manifests),
        len(files),
        sum(file.size for file in files),
        output,
    )


def _is_there(tree: JobTree, into: str, epoch: Epoch) -> bool:
    """True if a move that was interrupted after it closed the journal has already brought the job there."""
    make_whole(into)
    try:
        there = open_tree(into)
        found = there.manifest(there.record(str(epoch)))
    except JobMoved as moved:
        return moved.job == tree.birth.job  # it was there, and went on
    except (WrongJob, StoreUnavailable, JournalError, NoSuchEpoch, UnusableEpoch):
        return False
    origin = from_json(found.notes).origin
    return there.birth == tree.birth and origin is not None and (origin.how, origin.uri) == (MOVE, tree.uri)


def _older(tree: JobTree, chosen: Chosen) -> tuple[list[KeptEpoch], list[str]]:
    """Return the epochs before the chosen one as they will be at the new place, and why others are left out."""
    kept, left = [], []
    for record in tree.state.usable:
        if record.epoch < chosen.found.record.epoch:
            try:
                pinned_there = record.epoch in tree.savepoints
                kept.append(KeptEpoch(tree.manifest(record), record.state, pinned_there, record.output))
            except UnusableEpoch as error:
                left.append(str(error))
    return kept, left


def _copy_files(tree: JobTree, new: NewTree, manifests: Sequence[Manifest], copied: Callable[[int], object]) -> None:
    def done(file: Checked) -> None:
        copied(file.size)
        reached(fail_points.FILE_COPIED)

    with scratch_folder("copy") as folder:
        copy_all(tree.store, new.store, files_of(manifests), folder, on_done=done)


def _empty(store: BlobStore) -> None:
    """Delete all that the job had, except what its journal says at last; the job is marked as moved."""
    for path in (info.path for info in store.list()):
        if isinstance(parse(path), ManifestFile | EndNoted | SharedFile) or is_mark(path):
            if not exists(store, MOVED):
                return  # the place is in use again
            store.delete(path)
    store.remove_leftovers()
    journal = journal_of(store)
    state = journal.read()
    if state.moved_to:
        journal.compact(state, state.number)


def _now() -> int:
    return int(time.time() * 1000)
