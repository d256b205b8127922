"""A program started from an epoch: the newest or an older one, in the job's own tree or as a job of its own.

Invariant: a program that does not fit the epoch changes nothing; going back to an older epoch gives up those
after it in the journal before anything is restored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from recovery.driver.settings.options import RunOptions, options_of
from recovery.driver.settings.program_fit import check_ignored, compare
from recovery.driver.tree.manifests import without_operators
from recovery.offline.epoch_choice import Chosen, choose, go_back
from recovery.offline.job_tree import JobTree
from recovery.offline.stopped_job import refuse_if_it_runs, take_over
from recovery.running import Run, run
from recovery.savepoints.copying import Begun, fork
from recovery.savepoints.rescaling import parallelism_of
from recovery.savepoints.sinks import PreparedOutput, output_of
from recovery.schemes.passive import usual_scheme
from recovery.schemes.scheme import Scheme, interval_of
from snapshot.cut.frames import MarkerMode
from snapshot.journal.state import OutputMade
from snapshot.program.program import Program
from statebackend.durations import Duration
from statebackend.errors import SavepointError
from statebackend.ids import Epoch, Uid
from statebackend.keygroups import check_parallelism

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class ToRestore:
    """The epoch that a program will be started from. `into` is the tree of the job of its own that it will be, if any.

    `passed_over` are newer epochs that cannot be used, with the reasons; `gives_up` are those that the job will not
    come back to, and `repeats` is output that it makes once more.
    """

    uri: str
    job: str
    epoch: Epoch
    parallelism: int
    into: str | None
    passed_over: tuple[str, ...]
    gives_up: tuple[Epoch, ...]
    repeats: OutputMade
    output: tuple[PreparedOutput, ...] = ()
    """The prepared output that the epoch carries; the job commits it as it starts."""


class BeyondMaximum(SavepointError, ValueError):
    """A parallelism that the job cannot have."""


def plan_restore_of(
    tree: JobTree,
    epoch: str,
    program: Program,
    *,
    parallelism: int | None = None,
    into: str | None = None,
    allow_non_restored_state: bool = False,
    ignore_state: Collection[str] = (),
    accept_duplicates: bool = False,
    job_folder: Path | None = None,
) -> ToRestore:
    """Check that the program can be started so, and return the plan; nothing is done.

    Raises `JobRuns`, what `epoch_choice.choose` raises, `InvalidProgram`, `ProgramDoesNotFit` and `BeyondMaximum`.
    """
    if into is None:
        refuse_if_it_runs(tree, job_folder)
    chosen = choose(tree, epoch, accept_duplicates=accept_duplicates)
    many = parallelism or parallelism_of(chosen.manifest)
    try:
        check_parallelism(many, tree.birth.max_parallelism)
    except ValueError as error:
        raise BeyondMaximum(f"{tree.uri}: {error}") from error
    unsettled = into is None and chosen.found.record.awaits_commit  # a fork leaves it to its origin
    _check_fit(program, tree, chosen, allow_non_restored_state, ignore_state, unsettled=unsettled)
    gives_up = () if into is not None else chosen.gives_up
    passed_over = tuple(map(str, chosen.found.passed_over))
    output = output_of(chosen) if into is None else ()
    return ToRestore(tree.uri, tree.birth.job, chosen.epoch, many, into, passed_over, gives_up, chosen.repeats, output)


def restore(
    tree: JobTree,
    epoch: str,
    program: Program,
    spark: SparkSession | SparkContext | None = None,
    *,
    parallelism: int | None = None,
    into: str | None = None,
    every: Duration | None = None,
    scheme: Scheme | None = None,
    begun: Begun = lambda _: lambda _: None,
    planned: Callable[[ToRestore], object] = lambda _: None,
    **options: Unpack[RunOptions],
) -> Run:
    """Start a program from an epoch; at the epoch's parallelism unless another is said.

    With `into` the epoch is forked first (see `copying.fork`): its files are not claimed, and the tree stays as it is.
    `planned` is told what will be done, before it is. The options are those of `recovery.run`, which raises what
    `plan_restore_of` does not.
    """
    scheme = scheme or usual_scheme()
    options_of(interval_of(scheme, every), MarkerMode.ALIGNED, options, scheme.rhythm)  # refused before all else
    local = options.get("local")
    job_folder = Path(local) if local else None
    accept = options.get("accept_duplicates", False)
    plan = plan_restore_of(
        tree,
        epoch,
        program,
        parallelism=parallelism,
        into=into,
        allow_non_restored_state=options.get("allow_non_restored_state", False),
        ignore_state=options.get("ignore_state", ()),
        accept_duplicates=accept,
        job_folder=job_folder,
    )
    planned(plan)
    if into is not None:
        fork(tree, epoch, into, accept_duplicates=accept, begun=begun)
    elif plan.gives_up or plan.repeats.epochs:
        go_back(take_over(tree, "restore", job_folder=job_folder), epoch, accept_duplicates=accept)
    return run(
        program,
        spark,
        checkpoints=into or tree.uri,
        parallelism=plan.parallelism,
        every=every,
        scheme=scheme,
        **options,
    )


def _check_fit(
    program: Program,
    tree: JobTree,
    chosen: Chosen,
    allow_non_restored_state: bool,
    ignore_state: Collection[str],
    *,
    unsettled: bool,
) -> None:
    ignored = frozenset(map(Uid, ignore_state))
    check_ignored(chosen.manifest, ignored, unsettled=unsettled)
    manifest = without_operators(chosen.manifest, ignored)
    fit = compare(program.plan(tree.birth.max_parallelism), manifest, unsettled=unsettled)
    fit.check(allow_non_restored_state=allow_non_restored_state)
