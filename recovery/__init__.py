"""Coming back: from what a crash left behind to the decision what happens next, and jobs that run and come back.

Invariant: importing this package alone loads nothing but itself, as deciding needs neither Arrow nor sockets;
what jobs are run with is loaded on demand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.on_demand import on_demand

if TYPE_CHECKING:
    from recovery.attached import Attached as Attached
    from recovery.attached import CommandDeclined as CommandDeclined
    from recovery.attached import ConnectionLost as ConnectionLost
    from recovery.attached import attach as attach
    from recovery.comparison.comparing import compare as compare
    from recovery.driver.claim import StartRefused as StartRefused
    from recovery.driver.launchers.java_archive import NoJavaArchive as NoJavaArchive
    from recovery.driver.launchers.java_archive import quick_java as quick_java
    from recovery.driver.launchers.launch import CannotLaunch as CannotLaunch
    from recovery.driver.launchers.local_processes import LocalProcesses as LocalProcesses
    from recovery.driver.launchers.spark_settings import spark_settings as spark_settings
    from recovery.driver.launchers.spark_tasks import SparkTasks as SparkTasks
    from recovery.driver.report.status import RunState as RunState
    from recovery.driver.report.status import RunStatus as RunStatus
    from recovery.driver.settings.options import Advanced as Advanced
    from recovery.driver.settings.options import RunOptions as RunOptions
    from recovery.driver.settings.options import Tls as Tls
    from recovery.driver.settings.options import UnknownOption as UnknownOption
    from recovery.driver.settings.options import UnusableTls as UnusableTls
    from recovery.driver.settings.program_fit import ProgramDoesNotFit as ProgramDoesNotFit
    from recovery.driver.tree.address import JobNotRunning as JobNotRunning
    from recovery.driver.tree.address import NotAllowed as NotAllowed
    from recovery.driver.tree.identity import WrongJob as WrongJob
    from recovery.driver.tree.owned import FencedOff as FencedOff
    from recovery.driver.tree.owned import JournalInDoubt as JournalInDoubt
    from recovery.events import AnyEvent as AnyEvent
    from recovery.events import AttemptFailed as AttemptFailed
    from recovery.events import BadRows as BadRows
    from recovery.events import Claimed as Claimed
    from recovery.events import Collapsed as Collapsed
    from recovery.events import Deployed as Deployed
    from recovery.events import Described as Described
    from recovery.events import DescribedOption as DescribedOption
    from recovery.events import DescribedStage as DescribedStage
    from recovery.events import EpochAbandoned as EpochAbandoned
    from recovery.events import EpochCommitted as EpochCommitted
    from recovery.events import EpochCompleted as EpochCompleted
    from recovery.events import EpochSkipped as EpochSkipped
    from recovery.events import EpochsRemoved as EpochsRemoved
    from recovery.events import EpochTriggered as EpochTriggered
    from recovery.events import Event as Event
    from recovery.events import FaultInjected as FaultInjected
    from recovery.events import Finished as Finished
    from recovery.events import GaveUp as GaveUp
    from recovery.events import Joining as Joining
    from recovery.events import JoinMarks as JoinMarks
    from recovery.events import Marks as Marks
    from recovery.events import Moved as Moved
    from recovery.events import NoEpochs as NoEpochs
    from recovery.events import NotJoined as NotJoined
    from recovery.events import OrphansDeleted as OrphansDeleted
    from recovery.events import PartitionLost as PartitionLost
    from recovery.events import PartitionReplaced as PartitionReplaced
    from recovery.events import PartitionRestored as PartitionRestored
    from recovery.events import PeerRefused as PeerRefused
    from recovery.events import PrimaryMoved as PrimaryMoved
    from recovery.events import Recovered as Recovered
    from recovery.events import RedundancyRestored as RedundancyRestored
    from recovery.events import ReplicaLost as ReplicaLost
    from recovery.events import Running as Running
    from recovery.events import Stalled as Stalled
    from recovery.events import Stopped as Stopped
    from recovery.events import Trouble as Trouble
    from recovery.events import WorkerDied as WorkerDied
    from recovery.events import WorkerJoined as WorkerJoined
    from recovery.events import WorkerLost as WorkerLost
    from recovery.offline.epoch_choice import OutputWouldRepeat as OutputWouldRepeat
    from recovery.offline.job_tree import NoSuchEpoch as NoSuchEpoch
    from recovery.offline.job_tree import UnusableEpoch as UnusableEpoch
    from recovery.offline.job_tree import open_tree as open_tree
    from recovery.offline.new_tree import TargetExists as TargetExists
    from recovery.offline.stopped_job import JobRuns as JobRuns
    from recovery.restart_strategies import ExponentialDelay as ExponentialDelay
    from recovery.restart_strategies import FailureRate as FailureRate
    from recovery.restart_strategies import FixedDelay as FixedDelay
    from recovery.restart_strategies import NoRestart as NoRestart
    from recovery.running import Run as Run
    from recovery.running import run as run
    from recovery.savepoints.bootstrapping import StateFrom as StateFrom
    from recovery.savepoints.bootstrapping import bootstrap as bootstrap
    from recovery.savepoints.copying import copy as copy
    from recovery.savepoints.copying import fork as fork
    from recovery.savepoints.copying import move as move
    from recovery.savepoints.data_frames import register as register
    from recovery.savepoints.editing import ChangedBy as ChangedBy
    from recovery.savepoints.editing import ChangedRows as ChangedRows
    from recovery.savepoints.editing import edit as edit
    from recovery.savepoints.repairing import CannotRepair as CannotRepair
    from recovery.savepoints.repairing import repair as repair
    from recovery.savepoints.rescaling import CannotRescale as CannotRescale
    from recovery.savepoints.rescaling import rescale as rescale
    from recovery.savepoints.spark_state import from_spark as from_spark
    from recovery.schemes.acks import Acks as Acks
    from recovery.schemes.active import Active as Active
    from recovery.schemes.micro_batches import MicroBatches as MicroBatches
    from recovery.schemes.passive import Passive as Passive
    from recovery.schemes.rolling_back import JobFailed as JobFailed
    from recovery.schemes.synchronous import Synchronous as Synchronous
    from recovery.telemetry.html_report import Reported as Reported
    from recovery.telemetry.html_report import report as report
    from recovery.telemetry.problems import CannotTell as CannotTell
    from snapshot.host.protocol.options import Following as Following
    from statebackend.errors import EpochcutError as EpochcutError
    from statebackend.errors import JobError as JobError
    from statebackend.errors import OptionError as OptionError
    from statebackend.errors import ProgramError as ProgramError
    from statebackend.errors import SavepointError as SavepointError
    from statebackend.errors import StoreError as StoreError

_HOME = {
    "recovery.attached": ("Attached", "CommandDeclined", "ConnectionLost", "attach"),
    "recovery.comparison.comparing": ("compare",),
    "recovery.schemes.rolling_back": ("JobFailed",),
    "recovery.driver.claim": ("StartRefused",),
    "recovery.driver.launchers.java_archive": ("NoJavaArchive", "quick_java"),
    "recovery.driver.launchers.launch": ("CannotLaunch",),
    "recovery.driver.launchers.local_processes": ("LocalProcesses",),
    "recovery.driver.launchers.spark_settings": ("spark_settings",),
    "recovery.driver.launchers.spark_tasks": ("SparkTasks",),
    "recovery.driver.report.status": ("RunState", "RunStatus"),
    "recovery.driver.settings.options": ("Advanced", "RunOptions", "Tls", "UnknownOption", "UnusableTls"),
    "recovery.driver.settings.program_fit": ("ProgramDoesNotFit",),
    "recovery.driver.tree.address": ("JobNotRunning", "NotAllowed"),
    "recovery.driver.tree.identity": ("WrongJob",),
    "recovery.driver.tree.owned": ("FencedOff", "JournalInDoubt"),
    "recovery.events": (
        "AnyEvent",
        "AttemptFailed",
        "BadRows",
        "Claimed",
        "Collapsed",
        "Deployed",
        "Described",
        "DescribedOption",
        "DescribedStage",
        "EpochAbandoned",
        "EpochCommitted",
        "EpochCompleted",
        "EpochSkipped",
        "EpochTriggered",
        "EpochsRemoved",
        "Event",
        "FaultInjected",
        "Finished",
        "GaveUp",
        "Marks",
        "Moved",
        "NoEpochs",
        "Joining",
        "JoinMarks",
        "NotJoined",
        "OrphansDeleted",
        "PartitionLost",
        "PartitionReplaced",
        "PartitionRestored",
        "PrimaryMoved",
        "PeerRefused",
        "Recovered",
        "RedundancyRestored",
        "ReplicaLost",
        "Running",
        "Stalled",
        "Stopped",
        "Trouble",
        "WorkerDied",
        "WorkerJoined",
        "WorkerLost",
    ),
    "recovery.telemetry.html_report": ("Reported", "report"),
    "recovery.telemetry.problems": ("CannotTell",),
    "recovery.offline.epoch_choice": ("OutputWouldRepeat",),
    "recovery.offline.job_tree": ("NoSuchEpoch", "UnusableEpoch", "open_tree"),
    "recovery.offline.new_tree": ("TargetExists",),
    "recovery.offline.stopped_job": ("JobRuns",),
    "recovery.restart_strategies": ("ExponentialDelay", "FailureRate", "FixedDelay", "NoRestart"),
    "recovery.running": ("Run", "run"),
    "recovery.savepoints.bootstrapping": ("StateFrom", "bootstrap"),
    "recovery.savepoints.copying": ("copy", "fork", "move"),
    "recovery.savepoints.data_frames": ("register",),
    "recovery.savepoints.editing": ("ChangedBy", "ChangedRows", "edit"),
    "recovery.savepoints.repairing": ("CannotRepair", "repair"),
    "recovery.savepoints.rescaling": ("CannotRescale", "rescale"),
    "recovery.savepoints.spark_state": ("from_spark",),
    "recovery.schemes.acks": ("Acks",),
    "recovery.schemes.active": ("Active",),
    "recovery.schemes.micro_batches": ("MicroBatches",),
    "recovery.schemes.passive": ("Passive",),
    "recovery.schemes.synchronous": ("Synchronous",),
    "snapshot.host.protocol.options": ("Following",),
    "statebackend.errors": ("EpochcutError", "JobError", "OptionError", "ProgramError", "SavepointError", "StoreError"),
}

__all__, __getattr__, __dir__ = on_demand(__name__, _HOME)
