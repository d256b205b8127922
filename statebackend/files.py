"""The files that a partition's keyed state consists of, and how they are put together again after a rescale.

Invariant: for every key group there is at most one base, it is the oldest file valid for that group, and
every file that is valid for the group and younger than it is a delta of a later epoch. So nothing that a base has
replaced can come back. The rules are checked whenever a `FileSet` is made, by `check_invariants`.

A delta holds what changed in its epoch, or in several that were merged, tombstones included; a base holds all there
is at its epoch, deltas of that epoch included, and no tombstones. A file keeps its content for good; what shrinks is
the set of key groups for which it is *valid*: a rescale narrows it (projection), a consolidation takes away what a
new base says better.

A delta of a table may have accumulators alone. Their keys are then in the base of the group, and the next base copies
the keys while all of them are in use (see `values_blocks`). A base without these keys is younger than the
accumulators, and hides them, as every later base does: deltas are only merged when all bases to come are younger than
the merge (see `Planner.changed`). So a delta needs no other file than its group's base.

Epochs must rise along a job's history, and their numbers with them. Within a job the journal's generations see to
that; a new job that begins from these files must begin with a generation and a number above those of every file.

`restore_plan` is the specification of a restore. `floors` is the cheap way to the same state, for a store whose
entries carry the number of their file's epoch: take all files whole, in restore order, delete nothing, and when
reading hide in each group what is older than the group's floor. Numbers are enough for that, without generations,
because a set in which they contradict the order of its epochs is refused.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from statebackend.errors import StoreError
from statebackend.ids import Epoch, KeyGroup
from statebackend.keygroups import KeyGroupRange, joined, without
from statebackend.stores.store import LONGEST_PART, LONGEST_PATH, could_be_ours

_CHECKSUM = re.compile(r"[a-z0-9]+:[0-9a-f]+")

_ABOVE_ALL: Final = (1 << 64) - 1
"""A number that no epoch has, and that still fits into a stamp."""


class FileSetError(StoreError, ValueError):
    """A file set that breaks a rule: from a bug, or from a forged manifest."""


class PathError(StoreError, ValueError):
    """A reference that is not a plain path relative to its tree; it might point outside."""


def check_path(path: str) -> None:
    """Refuse, with a `PathError`, a reference to what no store could hold: the rule is that of the blob stores.

    No segment begins with a dot, so nothing is hidden and nothing climbs out of the tree.
    """
    if could_be_ours(path):
        return
    if path.startswith(("/", "\\")) or re.match(r"[A-Za-z]:[\\/]", path):
        reason = "it is absolute, so the tree could not be moved"
    elif "://" in path:
        reason = "it has a scheme, so it may point into another store"
    elif ".." in path.replace("\\", "/").split("/"):
        reason = "it climbs out of its tree"
    elif len(path) > LONGEST_PATH or any(len(part) > LONGEST_PART for part in path.split("/")):
        reason = f"it is too long; at most {LONGEST_PATH} characters fit, and {LONGEST_PART} between two '/'"
    else:
        reason = "expected segments of ASCII letters, digits and _=@+,~.-, none beginning with a dot, joined by '/'"
    raise PathError(f"{path!r} is no reference to a file of the tree: {reason}")


def check_file(path: str, size: int, checksum: str) -> None:
    """Refuse a reference with such a path, size or checksum: `PathError` or `FileSetError`."""
    check_path(path)
    if size < 0:
        raise FileSetError(f"{path} has a size of {size} bytes")
    if not _CHECKSUM.fullmatch(checksum):
        raise FileSetError(f"{path} has checksum {checksum!r}; expected <algorithm>:<hex digits>")


class FileKind(Enum):
    """The content of a file: everything about its key groups, or the changes of an epoch alone."""

    DELTA = "delta"
    BASE = "base"


@dataclass(frozen=True, slots=True)
class FileRef:
    """A reference to one immutable file of sorted entries.

    `ranges` are the key groups for which it is valid, never empty, ascending and apart from each other; when a file
    is made they hold all groups that it has entries of. Two files of the same epoch and kind never speak of the same
    key. `checksum` is `<algorithm>:<hex digits>`.
    """

    path: str
    ranges: tuple[KeyGroupRange, ...]
    epoch: Epoch
    kind: FileKind
    size: int
    checksum: str

    def __post_init__(self) -> None:
        check_file(self.path, self.size, self.checksum)
        if not self.ranges:
            raise FileSetError(f"{self.path} is valid for no key group; such a file leaves the set")
        if len(self.ranges) > 1 and self.ranges != joined(self.ranges):
            listed = ", ".join(map(str, self.ranges))
            raise FileSetError(f"{self.path} is valid for {listed}; expected ascending ranges that do not touch")

    @property
    def restore_order(self) -> tuple[Epoch, bool, str]:
        """Return what files are sorted by: epoch, then deltas before bases, as a base contains its epoch's deltas."""
        return self.epoch, self.kind is FileKind.BASE, self.path


@dataclass(frozen=True, slots=True)
class FileSet:
    """All that the state of the key groups in `range` consists of, in restore order. Use `of` to sort."""

    range: KeyGroupRange
    files: tuple[FileRef, ...] = ()

    def __post_init__(self) -> None:
        check_invariants(self)

    @classmethod
    def of(cls, groups: KeyGroupRange, files: Iterable[FileRef]) -> FileSet:
        """Return the set of these files, which may come in any order."""
        return cls(groups, tuple(sorted(files, key=_restore_order)))

    def added(self, file: FileRef) -> FileSet:
        """Return the set with one more file, which an epoch adds.

        The caller owes that no younger base speaks of its groups.
        """
        return FileSet.of(self.range, (*self.files, file))

    def consolidated(self, base: FileRef) -> FileSet:
        """Return the set with a base for all that files up to its epoch say about its groups; later deltas stay.

        The base may be late: made from the cut of an epoch that others have followed.
        """
        return self.emptied(base.ranges, base.epoch).added(base)

    def emptied(self, groups: tuple[KeyGroupRange, ...], epoch: Epoch) -> FileSet:
        """Return the set in which files up to this epoch are not valid for these groups.

        A consolidation that finds no key in the groups needs no base for them.
        """
        kept = (_without(file, groups) if file.epoch <= epoch else file for file in self.files)
        return FileSet(self.range, tuple(file for file in kept if file is not None))

    def renewed(self) -> FileSet:
        """Return the set without its deltas, as the next ones say anew all that these have said, for all groups.

        The bases stay: they hold what the next deltas refer to.
        """
        return FileSet(self.range, tuple(file for file in self.files if file.kind is FileKind.BASE))

    def merged(self, paths: Collection[str], file: FileRef) -> FileSet:
        """Return the set with one delta in place of a run of deltas, wherever a key group has any of them.

        `file` must have the epoch of the youngest of the run and hold, for each name, the newest entry of those that
        lay in groups for which their file was valid when it was made; tombstones included. Files of the run may have
        left the set since, wholly or for some groups, because of a younger base: there `file` is not valid either.

        The caller owes that no base comes that is as old as `file`, or older, if entries need what an older base has.

        Why it is right: take a group, and a file of the run that is valid for it. A base of the group is older than
        that file, or as late as made from a cut inside the run; on top of either, the newest entries of the run give
        what the run gave, as each is what the youngest file that speaks of its name says. They may do so at the place
        of the youngest, unless a delta that is not of the run comes after an older one and speaks of the same groups:
        such a run is refused with a `FileSetError` (see `mergeable`).
        """
        run = [known for known in self.files if known.path in paths]
        kept = [known for known in self.files if known.path not in paths]
        if any(known.kind is FileKind.BASE or known.epoch > file.epoch for known in run):
            raise FileSetError(f"{file.path} of epoch {file.epoch} replaces bases or files of later epochs: {paths}")
        if not mergeable(run, kept, file.epoch):
            raise FileSetError(f"{file.path} would hide what others of {self.range} say after some of {paths}")
        ranges = _common(file.ranges, joined(part for known in run for part in known.ranges))
        return FileSet.of(self.range, [*kept, replace(file, ranges=ranges)] if ranges else kept)

    def projected(self, groups: KeyGroupRange) -> FileSet:
        """Return the same files seen through a narrower range, without those that hold nothing of it."""
        if not self.range.covers(groups):
            raise FileSetError(f"a set of key groups {self.range} cannot be narrowed to {groups}")
        narrowed = (_within(file, groups) for file in self.files)
        return FileSet(groups, tuple(file for file in narrowed if file is not None))


def check_invariants(files: FileSet) -> None:
    """Raise `FileSetError` unless paths are unique, files ordered and in range, and each base is alone and oldest."""
    seen: tuple[KeyGroupRange, ...] = ()
    paths: set[str] = set()
    last: FileRef | None = None
    for file in files.files:
        if file.path in paths:
            raise FileSetError(f"{file.path} is twice in the set of key groups {files.range}")
        paths.add(file.path)
        if file.ranges[0].first < files.range.first or file.ranges[-1].end > files.range.end:
            listed = ", ".join(map(str, file.ranges))
            raise FileSetError(f"{file.path} is valid for {listed} in a set of key groups {files.range}")
        if last is not None:
            _check_neighbours(last, file)
        if file.kind is FileKind.BASE and _common(seen, file.ranges):
            hidden = ", ".join(map(str, _common(seen, file.ranges)))
            raise FileSetError(f"base {file.path} replaces key groups {hidden}, yet older files still speak of them")
        if last is None or file.ranges != last.ranges:
            seen = joined(seen + file.ranges)
        last = file


def mergeable(run: Sequence[FileRef], others: Iterable[FileRef], youngest: Epoch) -> bool:
    """True if no delta outside the run, up to its youngest epoch, speaks of groups of an older file of the run."""
    first = min((file.epoch for file in run), default=youngest)
    return not any(
        file.epoch > older.epoch and _common(file.ranges, older.ranges)
        for file in others
        if file.kind is FileKind.DELTA and first < file.epoch <= youngest
        for older in run
    )


def union(parts: Iterable[FileSet]) -> FileSet:
    """Unite adjacent sets; a file that several of them share is in the result once, with all its valid groups.

    Raises `FileSetError` if a key group would be missing or have two owners, or if parts contradict each other on a
    file.
    """
    ordered = sorted(parts, key=lambda part: part.range)
    if not ordered:
        raise FileSetError("a union of no file sets has no key groups")
    merged: dict[str, FileRef] = {}
    end = ordered[0].range.first
    for part in ordered:
        if part.range.first != end:
            fault = "belong to two sets" if part.range.first < end else "are missing"
            span = f"between {min(end, part.range.first)} and {max(end, part.range.first)}"
            raise FileSetError(f"key groups {span} {fault}; the sets of a union lie side by side")
        end = part.range.end
        for file in part.files:
            merged[file.path] = _merged(merged.get(file.path), file)
    return FileSet.of(KeyGroupRange(ordered[0].range.first, end), merged.values())


def rescaled(parents: Iterable[FileSet], target: KeyGroupRange) -> FileSet:
    """Return what a partition with the groups `target` starts from: the union of its parents' projections.

    Parents that hold none of these groups may be among them. Raises `FileSetError` if some group has no parent, or two.
    """
    overlaps = ((parent, parent.range.intersection(target)) for parent in parents)
    parts = [parent.projected(overlap) for parent, overlap in overlaps if overlap is not None]
    if not parts:
        raise FileSetError(f"no parent holds any of the key groups {target}")
    files = union(parts)
    if files.range != target:
        raise FileSetError(f"the parents hold key groups {files.range} of {target}")
    return files


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete all that was taken so far in these groups."""

    ranges: tuple[KeyGroupRange, ...]


@dataclass(frozen=True, slots=True)
class Take:
    """Put the file's entries, tombstones included, on top of what was taken before."""

    file: FileRef


@dataclass(frozen=True, slots=True)
class Clip:
    """Delete all that lies outside these groups."""

    keep: tuple[KeyGroupRange, ...]


Step = Clear | Take | Clip


def restore_plan(files: FileSet) -> tuple[Step, ...]:
    """Return the steps from an empty store to the state of the set: each file is taken once, in restore order.

    A file may be taken whole, or only in its valid groups: the result is the same. For what a whole file brings in a
    group for which it is not valid was replaced by a younger base, or by a merge that says the same again, or lies in
    another partition's groups by now. So a group is cleared before the first file that is valid for it, which a base
    always is, and what no file is valid for is clipped at the end. Taking the parents one after the other instead, or
    not clearing, would bring deleted keys and fired timers back.
    """
    steps: list[Step] = []
    taken: tuple[KeyGroupRange, ...] = ()
    for file in files.files:
        fresh = without(file.ranges, taken)
        if steps and fresh:
            steps.append(Clear(fresh))
        steps.append(Take(file))
        taken = joined(taken + file.ranges)
    if steps:
        steps.append(Clip(taken))
    return tuple(steps)


@dataclass(frozen=True, slots=True)
class Floors:
    """For each key group of a set the number of the epoch below which entries are hidden; see `floors`."""

    ends: tuple[KeyGroup, ...]
    """The ends of ranges of groups with the same floor, ascending; the last is the end of the set's range."""
    numbers: tuple[int, ...]
    """The floor of each of these ranges."""

    def of(self, group: KeyGroup) -> int:
        """Return the floor of a group: entries with a lower number are hidden. Outside of the set's range all are."""
        place = bisect_right(self.ends, group)
        return self.numbers[place] if place < len(self.numbers) else _ABOVE_ALL


def bottoms(files: FileSet) -> list[tuple[KeyGroupRange, FileRef]]:
    """Return the oldest file that is valid for each group, by ranges of groups that share it; the oldest file first."""
    found: list[tuple[KeyGroupRange, FileRef]] = []
    left: tuple[KeyGroupRange, ...] = (files.range,)
    last: tuple[KeyGroupRange, ...] = ()
    for file in files.files:
        if file.ranges != last:
            found += [(part, file) for part in _common(left, file.ranges)]
            left = without(left, file.ranges)
        last = file.ranges
    return found


def floors(files: FileSet) -> Floors:
    """Return what to hide in a store that took all files of the set, whole and in restore order.

    The floor of a group is the number of the oldest file that is valid for it: its base, or its first delta. Older
    entries come from files that were replaced there: by a base, by a merge, or because the group was found empty.
    Where no file is valid, all that the files brought is hidden; what later epochs write is not.
    """
    floor = files.files[-1].epoch.number + 1 if files.files else 0
    found = [(part, file.epoch.number) for part, file in bottoms(files)]
    found += [(part, floor) for part in without((files.range,), tuple(part for part, _ in found))]
    if files.range.first:
        found.append((KeyGroupRange(KeyGroup(0), files.range.first), _ABOVE_ALL))
    found.sort()
    return Floors(tuple(part.end for part, _ in found), tuple(number for _, number in found))


def _check_neighbours(last: FileRef, file: FileRef) -> None:
    if last.restore_order > file.restore_order:
        raise FileSetError(f"{file.path} of epoch {file.epoch} stands after {last.path} of epoch {last.epoch}")
    if last.epoch.generation < file.epoch.generation and last.epoch.number >= file.epoch.number:
        raise FileSetError(
            f"{file.path} of epoch {file.epoch} is younger than {last.path} of epoch {last.epoch}, yet its number is "
            f"not higher; a job must begin with a number above those of the files that it begins from"
        )


def _restore_order(file: FileRef) -> tuple[Epoch, bool, str]:
    return file.restore_order


def _merged(known: FileRef | None, file: FileRef) -> FileRef:
    if known is None:
        return file
    both = replace(known, ranges=joined(known.ranges + file.ranges))
    if replace(file, ranges=both.ranges) != both:
        raise FileSetError(f"two sets contradict each other on {file.path}: {known} and {file}")
    return both


def _within(file: FileRef, groups: KeyGroupRange) -> FileRef | None:
    ranges = _common(file.ranges, (groups,))
    return replace(file, ranges=ranges) if ranges else None


def _without(file: FileRef, groups: tuple[KeyGroupRange, ...]) -> FileRef | None:
    ranges = without(file.ranges, groups)
    return replace(file, ranges=ranges) if ranges else None


def _common(left: tuple[KeyGroupRange, ...], right: tuple[KeyGroupRange, ...]) -> tuple[KeyGroupRange, ...]:
    overlaps = (one.intersection(other) for one in left for other in right)
    return tuple(overlap for overlap in overlaps if overlap is not None)
