"""Epochs and savepoints from outside, without a driver: read, copied, rescaled, edited, cleaned up.

Invariant: no epoch is ever changed; what is made is a new epoch in its job's tree or a tree of its own, which
is there as a whole or not at all.

    from recovery import savepoints

    tree = savepoints.open_tree("s3://bucket/clicks")
    print(savepoints.inspect(tree, "newest"))
    savepoints.fork(tree, "newest-savepoint", "s3://bucket/what-if")

Every verb of the command that works without a driver is a function here: first the job's tree, then which epoch
("newest", "newest-savepoint" or its number) where one is chosen, and then the rest. Each returns a typed result.

| verb of the command | function |
|---|---|
| `list`, `show`, `history` | `find_jobs` and `list_job`, `show_epoch`, `history` |
| `inspect`, `export`, `diff` | `inspect` and `read_rows`, `export`, `diff` |
| `edit`, `bootstrap` | `edit` with `set_key`, `delete_key`, `changes_in`; `bootstrap` |
| `restore`, `rescale`, `upgrade` | `plan_restore_of` and `restore`, `rescale`, `plan_upgrade` and `migrate` |
| `fork`, `copy`, `move` | `fork`, `copy`, `move` |
| `sinks` | `list_output`, `commit_output`, `abort_output` |
| `verify`, `gc` | `what_to_verify` and `verify`, `plan_cleanup` and `clean_up` |
| `dispose`, `repair` | `dispose`; `repair`, which takes the place of the tree, as it may not be one any more |

`recovery.attach` is for the others, which ask the driver of a job that runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.on_demand import on_demand

if TYPE_CHECKING:
    from recovery.offline.epoch_choice import OutputWouldRepeat as OutputWouldRepeat
    from recovery.offline.job_tree import NEWEST as NEWEST
    from recovery.offline.job_tree import NEWEST_SAVEPOINT as NEWEST_SAVEPOINT
    from recovery.offline.job_tree import JobTree as JobTree
    from recovery.offline.job_tree import NoSuchEpoch as NoSuchEpoch
    from recovery.offline.job_tree import UnusableEpoch as UnusableEpoch
    from recovery.offline.job_tree import find_jobs as find_jobs
    from recovery.offline.job_tree import open_tree as open_tree
    from recovery.offline.listing import EpochInFull as EpochInFull
    from recovery.offline.listing import EpochLine as EpochLine
    from recovery.offline.listing import ListedJob as ListedJob
    from recovery.offline.listing import list_job as list_job
    from recovery.offline.listing import show_epoch as show_epoch
    from recovery.offline.new_tree import TargetExists as TargetExists
    from recovery.offline.reading import BytesRead as BytesRead
    from recovery.offline.reading import NoSuchState as NoSuchState
    from recovery.offline.stopped_job import JobRuns as JobRuns
    from recovery.savepoints.bootstrapping import Bootstrapped as Bootstrapped
    from recovery.savepoints.bootstrapping import StateFilled as StateFilled
    from recovery.savepoints.bootstrapping import StateFrom as StateFrom
    from recovery.savepoints.bootstrapping import bootstrap as bootstrap
    from recovery.savepoints.comparing import CannotCompare as CannotCompare
    from recovery.savepoints.comparing import Compared as Compared
    from recovery.savepoints.comparing import KeyDiff as KeyDiff
    from recovery.savepoints.comparing import StateDiff as StateDiff
    from recovery.savepoints.comparing import diff as diff
    from recovery.savepoints.copying import Copied as Copied
    from recovery.savepoints.copying import CopyPlan as CopyPlan
    from recovery.savepoints.copying import copy as copy
    from recovery.savepoints.copying import fork as fork
    from recovery.savepoints.copying import move as move
    from recovery.savepoints.data_frames import register as register
    from recovery.savepoints.disposal import Disposed as Disposed
    from recovery.savepoints.disposal import dispose as dispose
    from recovery.savepoints.editing import ChangedBy as ChangedBy
    from recovery.savepoints.editing import ChangedRows as ChangedRows
    from recovery.savepoints.editing import Edited as Edited
    from recovery.savepoints.editing import StateChanged as StateChanged
    from recovery.savepoints.editing import edit as edit
    from recovery.savepoints.exporting import Exported as Exported
    from recovery.savepoints.exporting import ExportedTable as ExportedTable
    from recovery.savepoints.exporting import TableFormat as TableFormat
    from recovery.savepoints.exporting import export as export
    from recovery.savepoints.gc import Cleaned as Cleaned
    from recovery.savepoints.gc import CleanupPlan as CleanupPlan
    from recovery.savepoints.gc import Doomed as Doomed
    from recovery.savepoints.gc import clean_up as clean_up
    from recovery.savepoints.gc import plan_cleanup as plan_cleanup
    from recovery.savepoints.gc import plan_take_over as plan_take_over
    from recovery.savepoints.gc import take_over_and_plan as take_over_and_plan
    from recovery.savepoints.happenings import Happened as Happened
    from recovery.savepoints.happenings import history as history
    from recovery.savepoints.inspecting import OperatorSummary as OperatorSummary
    from recovery.savepoints.inspecting import StateRows as StateRows
    from recovery.savepoints.inspecting import StateSummary as StateSummary
    from recovery.savepoints.inspecting import Summary as Summary
    from recovery.savepoints.inspecting import Wanted as Wanted
    from recovery.savepoints.inspecting import inspect as inspect
    from recovery.savepoints.inspecting import read_rows as read_rows
    from recovery.savepoints.repairing import CannotRepair as CannotRepair
    from recovery.savepoints.repairing import Repaired as Repaired
    from recovery.savepoints.repairing import repair as repair
    from recovery.savepoints.rescaling import CannotRescale as CannotRescale
    from recovery.savepoints.rescaling import Rescaled as Rescaled
    from recovery.savepoints.rescaling import RescalePlan as RescalePlan
    from recovery.savepoints.rescaling import rescale as rescale
    from recovery.savepoints.restoring import BeyondMaximum as BeyondMaximum
    from recovery.savepoints.restoring import ToRestore as ToRestore
    from recovery.savepoints.restoring import plan_restore_of as plan_restore_of
    from recovery.savepoints.restoring import restore as restore
    from recovery.savepoints.sinks import AbortedOutput as AbortedOutput
    from recovery.savepoints.sinks import CommittedOutput as CommittedOutput
    from recovery.savepoints.sinks import ListedOutput as ListedOutput
    from recovery.savepoints.sinks import NotCommitted as NotCommitted
    from recovery.savepoints.sinks import PreparedOutput as PreparedOutput
    from recovery.savepoints.sinks import abort_output as abort_output
    from recovery.savepoints.sinks import commit_output as commit_output
    from recovery.savepoints.sinks import list_output as list_output
    from recovery.savepoints.typed_changes import changes_in as changes_in
    from recovery.savepoints.typed_changes import delete_key as delete_key
    from recovery.savepoints.typed_changes import set_key as set_key
    from recovery.savepoints.upgrading import Fit as Fit
    from recovery.savepoints.upgrading import MigratedState as MigratedState
    from recovery.savepoints.upgrading import StateFit as StateFit
    from recovery.savepoints.upgrading import Upgraded as Upgraded
    from recovery.savepoints.upgrading import UpgradePlan as UpgradePlan
    from recovery.savepoints.upgrading import migrate as migrate
    from recovery.savepoints.upgrading import plan_upgrade as plan_upgrade
    from recovery.savepoints.verifying import Damage as Damage
    from recovery.savepoints.verifying import ToVerify as ToVerify
    from recovery.savepoints.verifying import Verified as Verified
    from recovery.savepoints.verifying import verify as verify
    from recovery.savepoints.verifying import what_to_verify as what_to_verify

_HOME = {
    "recovery.offline.epoch_choice": ("OutputWouldRepeat",),
    "recovery.offline.job_tree": (
        "JobTree",
        "NEWEST",
        "NEWEST_SAVEPOINT",
        "NoSuchEpoch",
        "UnusableEpoch",
        "find_jobs",
        "open_tree",
    ),
    "recovery.offline.new_tree": ("TargetExists",),
    "recovery.offline.reading": ("BytesRead", "NoSuchState"),
    "recovery.offline.stopped_job": ("JobRuns",),
    "recovery.savepoints.bootstrapping": ("Bootstrapped", "StateFilled", "StateFrom", "bootstrap"),
    "recovery.savepoints.comparing": ("CannotCompare", "Compared", "KeyDiff", "StateDiff", "diff"),
    "recovery.savepoints.copying": ("Copied", "CopyPlan", "copy", "fork", "move"),
    "recovery.savepoints.data_frames": ("register",),
    "recovery.savepoints.disposal": ("Disposed", "dispose"),
    "recovery.savepoints.editing": ("ChangedBy", "ChangedRows", "Edited", "StateChanged", "edit"),
    "recovery.savepoints.exporting": ("Exported", "ExportedTable", "TableFormat", "export"),
    "recovery.savepoints.gc": (
        "Cleaned",
        "CleanupPlan",
        "Doomed",
        "clean_up",
        "plan_cleanup",
        "plan_take_over",
        "take_over_and_plan",
    ),
    "recovery.savepoints.happenings": ("Happened", "history"),
    "recovery.savepoints.inspecting": (
        "OperatorSummary",
        "StateRows",
        "StateSummary",
        "Summary",
        "Wanted",
        "inspect",
        "read_rows",
    ),
    "recovery.offline.listing": ("EpochInFull", "EpochLine", "ListedJob", "list_job", "show_epoch"),
    "recovery.savepoints.repairing": ("CannotRepair", "Repaired", "repair"),
    "recovery.savepoints.rescaling": ("CannotRescale", "RescalePlan", "Rescaled", "rescale"),
    "recovery.savepoints.restoring": ("BeyondMaximum", "ToRestore", "plan_restore_of", "restore"),
    "recovery.savepoints.sinks": (
        "AbortedOutput",
        "CommittedOutput",
        "ListedOutput",
        "NotCommitted",
        "PreparedOutput",
        "abort_output",
        "commit_output",
        "list_output",
    ),
    "recovery.savepoints.typed_changes": ("changes_in", "delete_key", "set_key"),
    "recovery.savepoints.upgrading": (
        "Fit",
        "MigratedState",
        "StateFit",
        "UpgradePlan",
        "Upgraded",
        "migrate",
        "plan_upgrade",
    ),
    "recovery.savepoints.verifying": ("Damage", "ToVerify", "Verified", "verify", "what_to_verify"),
}

__all__, __getattr__, __dir__ = on_demand(__name__, _HOME)
