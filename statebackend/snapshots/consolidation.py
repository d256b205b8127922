"""Decide when to rewrite which files of a state, so that neither its space nor its number of files grows without bound.

Invariant: bases are paid for by what changed, at most `Policy.pace` times as many bytes plus one slice; key
groups are rewritten oldest first; and everything is decided from the file set alone, except for the bytes earned since
the last slice. So a restore, a rescale or a changed setting needs no memory of the past.

How it decides. A *slice* is a few neighbouring key groups. To rewrite one costs about what lives in it, and frees each
file whose groups are then all replaced. Going through the slices in their order of age, the planner knows how much
more may be changed until each must be done, for the ceiling to hold; the most urgent of these sets how many bytes are
rewritten per byte that changes. Where deltas come evenly, this settles at 1 / (space amplification - 1).

Deltas are merged only when they are many, and then those that cost least for what they save: small and young ones. A
delta of usual size is freed by a slice in the end, and is never rewritten before.

All bases are younger than what was merged before them: in the groups of a base no merge is visible that says what was
before. That matters for accumulators whose keys only an older base has (see `values_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statebackend.files import FileKind, FileRef, FileSet, bottoms, mergeable
from statebackend.ids import NO_EPOCH, Epoch, KeyGroup
from statebackend.keygroups import KeyGroupRange

SMALLEST_SLICE: Final = 256 << 10
LARGEST_FILE: Final = 64 << 20
_SLICES: Final = 32
_FAN: Final = 8
_FEWEST_DELTAS: Final = 128
_MOST_DELTAS: Final = 2048
_USUAL_DELTA: Final = 512 << 10


@dataclass(frozen=True, slots=True)
class Policy:
    """The space that may be wasted: the files of a state may take this many times what lives in them.

    More space means fewer bytes rewritten per epoch, and more files and bytes that a restore reads. Without `rewrites`
    nothing is ever rewritten, for a program that makes one epoch and ends.
    """

    space_amplification: float = 2.25
    rewrites: bool = True

    def __post_init__(self) -> None:
        if not 1.1 <= self.space_amplification <= 100:
            raise ValueError(f"space amplification {self.space_amplification} is out of bounds: 1.1 to 100")

    @property
    def pace(self) -> float:
        """Return how many bytes are rewritten as slices per byte that changed, at most; usually a quarter of that."""
        return 4 / (self.space_amplification - 1)

    @property
    def most_values(self) -> float:
        """Return up to which part of keys and accumulators together the accumulators are written without the keys.

        That is if all change: they take that much more space until the next ones take their place.
        """
        return min((self.space_amplification - 1) / 2, 2 / 3)

    def most_bytes(self, live: float, delta: float) -> float:
        """Return the ceiling for the sizes of all files together, with so many bytes alive and deltas of this size.

        `live` counts each slice as it was when it was last rewritten: deletions since then are not known. Changes made
        while slices are being written come on top. A set that begins above the ceiling, because of a rescale or another
        setting, or because everything is in one huge file, comes below it at the given pace.
        """
        return self.space_amplification * live + 2 * self.largest_slice(live) + delta

    def most_deltas(self, live: float) -> int:
        """Return how many deltas are left unmerged: of half a mebibyte each they fill the ceiling."""
        fitting = int((self.space_amplification - 1) * live / _USUAL_DELTA)
        return max(_FEWEST_DELTAS, min(fitting, _MOST_DELTAS))

    def most_files(self, live: float, groups: int) -> int:
        """Return the ceiling for the number of files of a partition with so many groups.

        It holds as long as groups are about equally large and epochs write one delta each; two bases may share a
        slice while its width changes, and an epoch or two may come in while files are merged. Deltas of epochs that
        bases cannot be made of yet come on top.
        """
        slices = min(groups, max(2 * _SLICES, round(2 * live / LARGEST_FILE)) + 2)
        return self.most_deltas(live) + 2 * slices + 2

    def largest_slice(self, live: float) -> float:
        """Return how large a slice is meant to be; one key group, if that is larger."""
        return min(max(live / _SLICES, SMALLEST_SLICE), LARGEST_FILE)


@dataclass(frozen=True, slots=True)
class Consolidate:
    """Write a base of all that lives in these groups, at any epoch whose state is at hand; or find nothing there."""

    groups: KeyGroupRange


@dataclass(frozen=True, slots=True)
class Merge:
    """Write the newest valid entry of each name, tombstones included, as a delta of the last file's epoch."""

    run: tuple[FileRef, ...]


class Planner:
    """Decides after each epoch what to rewrite, for one state in one attempt.

    A crash loses the bytes earned since the last slice, less than one slice; the next planner hurries up for it.
    """

    def __init__(self, policy: Policy, began: Epoch = NO_EPOCH) -> None:
        """Begin with a file set whose newest file is of epoch `began`: maybe a merge."""
        self._policy = policy
        self._began = began
        self._pace = 0.0
        self._credit = 0.0
        self._reserved = 0.0
        self._slices = 0
        self._waiting = False

    def changed(self, files: FileSet, size: int, at: Epoch) -> list[Consolidate | Merge]:
        """Return what to rewrite, oldest first: an epoch with a delta of this size is durable, `files` is the set now.

        The caller owes that all bases from now on are of epoch `at` or of later ones. The list is empty as long as the
        last one was not answered, or bases would not be younger than all that the attempt began with.
        """
        if not self._policy.rewrites:
            return []
        self._credit += self._pace * size
        survey = _Survey(files, self._policy)
        if self._waiting or at <= self._began:
            self._pace = survey.pace(0)
            return []
        slices: list[Consolidate | Merge] = []
        for groups, cost in survey.slices:
            if cost > self._credit:
                break
            self._credit -= cost
            self._reserved += cost
            slices.append(Consolidate(groups))
        if len(slices) == len(survey.slices):
            self._credit = 0.0
        self._pace = survey.pace(len(slices))
        self._slices = len(slices)
        run = cheapest_run(files, self._policy.most_deltas(survey.live), at)
        steps = [*slices, Merge(run)] if run else slices
        self._waiting = bool(steps)
        return steps

    def answered(self, size: int) -> None:
        """Note that all requests are in the set, or were given up; their bases have this size together."""
        self._credit += self._reserved - max(size, self._slices * SMALLEST_SLICE)
        self._reserved = 0.0
        self._slices = 0
        self._waiting = False


class _Survey:
    """The sizes of a file set's parts, and the order in which they are best rewritten.

    How many bytes of a file lie in which of its groups is not known: they are taken to be spread evenly over those for
    which it is still valid. For a file most of whose groups were replaced that would be far too much; so no group
    counts for more than twice the median.
    """

    def __init__(self, files: FileSet, policy: Policy) -> None:
        self._files = files
        self._policy = policy
        oldest = bottoms(files)
        self._densest = 2 * _median([(_density(file), len(part)) for part, file in oldest])
        densities = [(part, min(_density(file), self._densest)) for part, file in oldest]
        self.live = sum(density * len(part) for part, density in densities)
        self._width = self._slice_width()
        self._sizes: dict[int, float] = {}
        for part, density in densities:
            for index in self._indices((part,)):
                shared = part.intersection(self._slice(index))
                self._sizes[index] = self._sizes.get(index, 0.0) + density * (len(shared) if shared else 0)
        ages = self._ages()
        self._order = sorted(ages, key=lambda index: (ages[index], index))
        self.slices = [(self._slice(index), self._cost(index)) for index in self._order]

    def pace(self, done: int) -> float:
        """Return how many bytes must be rewritten per byte that changes, for the ceiling to hold at each slice to come.

        The first `done` slices are about to be rewritten.
        """
        freed = self._freed()
        room = self._policy.most_bytes(self.live, 0) - sum(file.size for file in self._files.files)
        for index in self._order[:done]:
            room += freed.get(index, 0) - self._cost(index)
        work = pace = 0.0
        for index in self._order[done:]:
            work += self._cost(index)
            left = room - work
            if left * self._policy.pace <= work:
                return self._policy.pace
            pace = max(pace, work / left)
            room += freed.get(index, 0)
        return pace

    def _freed(self) -> dict[int, int]:
        """Return how many bytes of files each slice frees once it is rewritten, all before it being so already."""
        sizes: dict[tuple[KeyGroupRange, ...], int] = {}
        for file in self._files.files:
            sizes[file.ranges] = sizes.get(file.ranges, 0) + file.size
        place = {index: place for place, index in enumerate(self._order)}
        freed: dict[int, int] = {}
        for ranges, size in sizes.items():
            indices = self._indices(ranges)
            if indices <= place.keys():
                last = max(indices, key=place.__getitem__)
                freed[last] = freed.get(last, 0) + size
        return freed

    def _cost(self, index: int) -> float:
        return max(self._sizes.get(index, 0.0), SMALLEST_SLICE)

    def _ages(self) -> dict[int, Epoch]:
        """Return each slice that is worth rewriting, and the oldest epoch whose files that would help to free."""
        ages: dict[int, Epoch] = {}
        last: tuple[KeyGroupRange, ...] = ()
        for file in self._files.files:
            if file.kind is FileKind.BASE and _density(file) <= self._densest:
                continue
            if file.ranges != last:
                for index in self._indices(file.ranges):
                    ages.setdefault(index, file.epoch)
            last = file.ranges
        return ages

    def _slice_width(self) -> int:
        """Return a power of two, so that slices of another width lie inside one, or the other way round."""
        groups = len(self._files.range)
        wanted = self._policy.largest_slice(self.live) * groups
        width = 1
        while width < groups and 2 * width * self.live <= wanted:
            width *= 2
        return width

    def _slice(self, index: int) -> KeyGroupRange:
        own = self._files.range
        if self._width >= len(own):
            return own
        first = index * self._width
        return KeyGroupRange(KeyGroup(max(first, own.first)), KeyGroup(min(first + self._width, own.end)))

    def _indices(self, ranges: tuple[KeyGroupRange, ...]) -> set[int]:
        if self._width >= len(self._files.range):
            return {0}
        return {
            index for part in ranges for index in range(part.first // self._width, (part.end - 1) // self._width + 1)
        }


def cheapest_run(files: FileSet, most: int, end: Epoch) -> tuple[FileRef, ...]:
    """Return the deltas to merge if more than `most` lie before this epoch: few bytes, and long to stay; else none."""
    deltas = [file for file in files.files if file.kind is FileKind.DELTA]
    sizes = [file.size for file in deltas if file.epoch < end]
    if len(sizes) <= most:
        return ()
    starts = [(sum(sizes[at : at + _FAN]), at) for at in range(len(sizes) - _FAN + 1)]
    for total, at in sorted(starts, key=lambda start: start[0] / (start[1] + 1)):
        run = deltas[at : at + _FAN]
        if total <= LARGEST_FILE and mergeable(run, deltas[:at] + deltas[at + _FAN :], run[-1].epoch):
            return tuple(run)
    return ()


def _density(file: FileRef) -> float:
    return file.size / sum(map(len, file.ranges))


def _median(weighted: list[tuple[float, int]]) -> float:
    half = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        half -= weight
        if half <= 0:
            return value
    return 0.0
