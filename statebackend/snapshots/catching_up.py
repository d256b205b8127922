"""From what an epoch's file set was made of to what a later one's is, without beginning anew: which files to take.

Invariant: taking the steps on top of a store that has taken the files of the earlier set gives what a restore
of the later set gives. Nothing was written to that store but by taking files.

A base may come late: it was made at an epoch that others have followed, and is in no set before. So from the first
file that is missing on, all files of the set are taken, in order, those once more that are there already: for a name
that several of them speak of, the last one says, as in a restore. What an older set had and this one has not was
replaced: by a base, which comes in the place of all there is of its groups; or because the groups were found empty,
which are cleared before the first file that is valid for them; or by a merge of deltas, which says the same once more,
and need not be taken where its run was.
"""

from __future__ import annotations

from dataclasses import dataclass

from statebackend.files import FileKind, FileRef, FileSet, floors
from statebackend.ids import KeyGroup
from statebackend.keygroups import KeyGroupRange, joined, without


@dataclass(frozen=True, slots=True)
class Replace:
    """Have what the base says of these groups, and nothing else; nothing at all if there is no base."""

    groups: tuple[KeyGroupRange, ...]
    base: FileRef | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """Take a delta on top of what is there."""

    file: FileRef


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """The steps to be done, in order; `files` are those that the steps need."""

    steps: tuple[Replace | Add, ...]
    files: FileSet
    newest: int
    """The number of the youngest epoch of which the earlier set has a file: what others say is news."""

    def is_news(self, file: FileRef) -> bool:
        """True if the file says what the earlier set did not say."""
        return file.epoch.number > self.newest


def catching_up(before: FileSet, after: FileSet) -> CatchingUp | None:
    """Return how to get from one set to the other; None if there is no way but to begin anew."""
    if before.range != after.range or not before.files or not after.files:
        return None
    newest, known = before.files[-1].epoch, {file.path for file in before.files}
    if after.files[-1].epoch < newest or _hidden(before, after):
        return None
    files = after.files
    missing = (
        place
        for place, file in enumerate(files)
        if file.path not in known and (file.kind is FileKind.BASE or file.epoch > newest)
    )
    start = next(missing, len(files))
    taken = joined(part for file in files[:start] for part in file.ranges)
    steps: list[Replace | Add] = []
    for file in files[start:]:
        if file.kind is FileKind.BASE:
            steps.append(Replace(file.ranges, file))
        else:
            fresh = without(file.ranges, taken)
            steps += [Replace(fresh), Add(file)] if fresh else [Add(file)]
        taken = joined(taken + file.ranges)
    empty = without((after.range,), taken)
    if empty:
        steps.append(Replace(empty))
    return CatchingUp(tuple(steps), FileSet(after.range, files[start:]), newest.number)


def _hidden(before: FileSet, after: FileSet) -> bool:
    """True if a store with the floors of the earlier set would hide what the later one says."""
    old, new = floors(before), floors(after)
    edges = {before.range.first, *old.ends, *new.ends}
    groups = [KeyGroup(edge) for edge in edges if edge in before.range]
    return any(new.of(group) < old.of(group) for group in groups)
