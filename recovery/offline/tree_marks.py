"""The marks of a tree that is being made: who began it, one after the other, and who of them has made it.

Invariant: marks are numbered from 1, each is created once, by a command that found the one before it to be the newest,
and one that says that the tree is made is the last. So one who began has made the tree, or another one began after him,
and never both: each tries to create the number after his own. A mark names the number at which the journal of its tree
begins, so that those of an earlier tree at the same place do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from snapshot.tree.layout import UNFINISHED, JournalSummary, parse
from statebackend.ids import Generation
from statebackend.snapshots.sealed_json import Fields, seal, unseal

_FORM: Final = "epochcut.unfinished"
_VERSION: Final = 2
_PATH: Final = re.compile(UNFINISHED + r"/([0-9]{10})-([0-9]{1,9})\.json")


@dataclass(frozen=True, slots=True)
class Made:
    """The files that are written last when a tree is made: its `job.json`, and the begin of its journal."""

    job: bytes
    journal: bytes


@dataclass(frozen=True, slots=True)
class Mark:
    """One of the marks. `of` is the job whose files are brought there, empty if there is none.

    All these files were named in generations before `generation`, and all that the new job names comes after it.
    """

    first: int
    """The number at which the tree's journal begins."""
    number: int
    verb: str
    of: str
    generation: Generation
    nonce: str
    """Tells it from the mark of any other command."""
    made: Made | None = None

    @property
    def path(self) -> str:
        """Return the path of the mark."""
        return f"{UNFINISHED}/{self.first:010}-{self.number}.json"

    def encoded(self) -> bytes:
        """Return the mark's bytes."""
        made = [] if self.made is None else [{"job": self.made.job.decode(), "journal": self.made.journal.decode()}]
        content = {"by": self.verb, "of": self.of, "generation": self.generation, "nonce": self.nonce, "made": made}
        return seal(_FORM, _VERSION, content)


def mark_from(path: str, data: bytes) -> Mark:
    """Read the mark at a path; `ValueError` if it is damaged, or of a newer program."""
    place = _PATH.fullmatch(path)
    if place is None:
        raise ValueError(f"{path} is no mark of this version")
    fields = unseal(data, _FORM, _VERSION)
    made = tuple(map(_made_from, fields.objects("made")))
    mark = Mark(
        int(place[1]),
        int(place[2]),
        fields.text("by"),
        fields.text("of"),
        Generation(fields.count("generation")),
        fields.text("nonce"),
        made[0] if made else None,
    )
    fields.close()
    return mark


def is_mark(path: str) -> bool:
    """True if the path is that of a mark, of this version or of another."""
    return path.startswith(f"{UNFINISHED}/")


def is_old_mark(path: str) -> bool:
    """True if the path is that of a mark of version 1: it is named differently, and never says that a tree was made."""
    return is_mark(path) and _PATH.fullmatch(path) is None


def newest_mark(paths: Iterable[str], first: int) -> str | None:
    """Return the newest mark of the tree whose journal begins at `first`; marks of other versions do not count."""
    places = (_PATH.fullmatch(path) for path in paths)
    found = {int(place[2]): place[0] for place in places if place is not None and int(place[1]) == first}
    return found[max(found)] if found else None


def first_number(paths: Iterable[str]) -> int:
    """Return the first number of a new tree's journal: above all used there, so that late writers are recognised."""
    places = (parse(path) for path in paths)
    return 1 + max((place.number for place in places if isinstance(place, JournalSummary)), default=0)


def _made_from(fields: Fields) -> Made:
    made = Made(fields.text("job").encode(), fields.text("journal").encode())
    fields.close()
    return made
