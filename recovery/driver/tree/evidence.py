"""A tree's journal, read and compared with what lies beside it, before anything is decided or written.

Invariant: nothing is written; the tree is listed before the journal is read, so what a running driver does
meanwhile is no damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from recovery.decisions.losses import Remains, Unreadable, proofs_of_loss, to_read
from snapshot.journal.entries import DamagedJournal, UnderRepair
from snapshot.journal.state import JournalState
from snapshot.journal.store import StoredJournal
from snapshot.tree.layout import EPOCHS, JOB, JOURNAL, SHARED, ManifestFile, SharedFile, parse, path_of
from snapshot.tree.manifest import DamagedManifest, Manifest, NewerManifest
from snapshot.tree.manifest_json import decode
from statebackend.ids import Epoch
from statebackend.stores.patience import Patience
from statebackend.stores.store import BlobInfo, BlobNotFound, BlobStore


class DamagedTree(DamagedJournal):
    """The journal is damaged, or has lost entries; the message says what is there, what it proves, and what to do."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A journal that nothing proves to be damaged. `shared` are the files that were listed before it was read.

    `doubtful` are epochs that have a manifest and no entry: their driver died just then, or these were the very newest
    entries, and are lost.
    """

    state: JournalState
    shared: tuple[BlobInfo, ...]
    doubtful: tuple[Epoch, ...] = ()


def examine(store: BlobStore, uri: str, journal: StoredJournal, patience: Patience) -> Examined:
    """Read the journal; raise `DamagedTree` if it is damaged or has lost entries."""
    epochs = [info.path for info in patience.ask(lambda: store.list(EPOCHS))]
    shared = tuple(patience.ask(lambda: store.list(SHARED)))
    try:
        state = journal.read()
    except UnderRepair as error:
        goes_on = f"`recovery repair --checkpoints {uri}` goes on with it"
        raise DamagedTree(f"{uri}: {error}; nothing was written. {goes_on}") from error
    except DamagedJournal as error:
        raise DamagedTree(f"{uri}: {error}; nothing was written. {_advice(uri, _SAYS)}") from error
    listed = (*epochs, *(info.path for info in shared))
    found = {item: _read(store, item, patience) for item in to_read(state, listed)}
    remains = Remains(listed, {item: content for item, content in found.items() if content is not None})
    proofs = proofs_of_loss(state, remains)
    if proofs:
        has = f"it ends with entry {state.number}" if state.number else "it is empty"
        listed_proofs = "".join(f"\n  {proof}" for proof in proofs)
        raise DamagedTree(
            f"{uri}: the journal has lost its newest entries: {has} ({_known(state)}), but{listed_proofs}\n"
            f"nothing was written. {_advice(uri, _SAYS)}"
        )
    return Examined(state, shared, tuple(item.epoch for item in remains.beyond))


def left_without_birth(store: BlobStore) -> str:
    """Return, in words, what there is of a job whose `job.json` is not there; empty if there is nothing."""
    journal = [info.path for info in store.list(JOURNAL) if parse(info.path) is not None]
    files = [info.path for folder in (EPOCHS, SHARED) for info in store.list(folder)]
    manifests = [path for path in files if isinstance(parse(path), ManifestFile)]
    shared = [path for path in files if isinstance(parse(path), SharedFile)]
    counted = ((journal, "files of a journal"), (manifests, "manifests"), (shared, "files of state"))
    found = [f"{len(paths)} {what}" for paths, what in counted if paths]
    return ", ".join(found)


def about_lost_birth(uri: str, left: str) -> str:
    """Return the message about a tree without its `job.json`."""
    place = f"{uri}: " if uri else ""
    return (
        f"{place}{JOB} is missing, and there are {left}: the job is not begun anew beside them. Nothing was written. "
        f"{_advice(uri, 'says what it can make of them')}; to begin another job, empty the place"
    )


_SAYS = "says what can be done"


def _advice(uri: str, does: str) -> str:
    return f"`recovery repair --checkpoints {uri or 'URI'} --dry-run` {does}"


def _known(state: JournalState) -> str:
    epochs = ", ".join(str(record.epoch) for record in state.usable) or "none"
    return f"generation {state.generation}, complete epochs: {epochs}"


def _read(store: BlobStore, item: ManifestFile, patience: Patience) -> Manifest | Unreadable | None:
    """Return the manifest; None if it is gone, as a running driver has completed the epoch since, and removed it."""
    path = path_of(item)
    try:
        return decode(patience.ask(partial(store.read, path)), path)
    except BlobNotFound:
        return None
    except (DamagedManifest, NewerManifest) as error:
        return Unreadable(str(error))
