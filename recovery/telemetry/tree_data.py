"""The epochs that lie in a job's tree, as its page shows them; whatever is damaged there is named in its place.

Invariant: the tree is only read, and what is wrong with it is told and never raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from recovery import events as log
from recovery.decisions.notes import from_json
from recovery.driver.report.event_log import plain
from recovery.offline.job_tree import JobTree, NoSuchEpoch, UnusableEpoch, open_tree
from recovery.offline.listing import list_job
from snapshot.tree.manifest import Manifest, ManifestKind
from statebackend.ids import Partition, Uid
from statebackend.readable import readable_logger

SECONDS: Final = 5.0
"""Seconds for which the answer of a tree holds; a store may be far, or dear to ask."""
_LOG: Final = readable_logger("epochcut.web")


def tree_data(uri: str) -> Mapping[str, object]:
    """Return the epochs in the tree at this place, newest first; if it cannot be read, the reason."""
    try:
        listed = list_job(open_tree(uri))
    except Exception as error:  # a page says what is wrong with a tree, whatever that is
        _LOG.debug("the tree at %s cannot be read", uri, exc_info=True)
        return {"uri": uri, "problem": f"the tree cannot be read: {error}", "epochs": []}
    return {
        "uri": listed.uri,
        "problem": listed.problem,
        "max_parallelism": listed.max_parallelism,
        "epochs": [plain(line) for line in reversed(listed.epochs)],
    }


def told_by(tree: JobTree) -> Iterator[log.AnyEvent]:
    """Give events as their manifests tell them, for a job whose own file of events is not here; the oldest first."""
    described = False
    for record in tree.state.usable:
        try:
            manifest = tree.manifest(record)
        except (NoSuchEpoch, UnusableEpoch):
            continue
        if not described:
            described = True
            yield _described(tree, manifest)
        yield _completed(manifest)


def _described(tree: JobTree, manifest: Manifest) -> log.Described:
    stages = [log.DescribedStage(operator.uid, "", (), ()) for operator in manifest.operators]
    program = log.DescribedOption("program_version", from_json(manifest.notes).program, given=True)
    options = [
        log.DescribedOption("checkpoints", tree.uri, given=True),
        log.DescribedOption("max_parallelism", str(tree.birth.max_parallelism), given=True),
        *([program] if program.value else []),
    ]
    return log.Described(
        at=manifest.created_at / 1000,
        job=tree.birth.job,
        scheme="",
        parallelism=max((operator.parallelism for operator in manifest.operators), default=0),
        stages=tuple(stages),
        options=tuple(options),
    )


def _completed(manifest: Manifest) -> log.EpochCompleted:
    took = from_json(manifest.notes).took
    states: dict[Uid, dict[Partition, int]] = {}
    for operator in manifest.operators:
        for subtask in operator.subtasks:
            if subtask.state is not None:
                size = sum(file.size for file in subtask.state.files)
                states.setdefault(operator.uid, {})[subtask.partition] = size
    return log.EpochCompleted(
        at=manifest.created_at / 1000,
        epoch=manifest.epoch,
        savepoint=manifest.kind is ManifestKind.SAVEPOINT,
        since_trigger_ms=max((one.since_trigger_ms for one in took), default=0.0),
        alignment_ms=max((one.alignment_ms for one in took), default=0.0),
        sync_ms=max((one.sync_ms for one in took), default=0.0),
        async_ms=max((one.async_ms for one in took), default=0.0),
        state_bytes=sum(one.state_bytes for one in took),
        channel_bytes=sum(one.channel_bytes for one in took),
        partitions=took,
        states=states,
        output=any(
            not one.payload.held for each in manifest.operators for part in each.subtasks for one in part.committables
        ),
    )
