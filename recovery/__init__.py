"""Coming back: from what a crash left behind to the decision what happens next, and jobs that run and come back.

What always holds: importing this package alone loads nothing but itself, as deciding needs neither Arrow nor sockets;
what jobs are run with is loaded on demand.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recovery.attached import Attached as Attached
    from recovery.attached import CommandDeclined as CommandDeclined
    from recovery.attached import ConnectionLost as ConnectionLost
    from recovery.attached import attach as attach
    from recovery.driver.attempts.failures import JobFailed as JobFailed
    from recovery.driver.claim import StartRefused as StartRefused
    from recovery.driver.launchers.java_archive import NoJavaArchive as NoJavaArchive
    from recovery.driver.launchers.java_archive import quick_java as quick_java
    from recovery.driver.launchers.launch import CannotLaunch as CannotLaunch
    from recovery.driver.launchers.local_processes import LocalProcesses as LocalProcesses
    from recovery.driver.launchers.spark_settings import spark_settings as spark_settings
    from recovery.driver.launchers.spark_tasks import SparkTasks as SparkTasks
    from recovery.driver.report.status import RunState as RunState
    from recovery.driver.report.status import RunStatus as RunStatus
    from recovery.driver.settings.options import Tls as Tls
    from recovery.driver.settings.options import UnknownOption as UnknownOption
    from recovery.driver.settings.options import UnusableTls as UnusableTls
    from recovery.driver.settings.program_fit import ProgramDoesNotFit as ProgramDoesNotFit
    from recovery.driver.tree.address import JobNotRunning as JobNotRunning
    from recovery.driver.tree.address import NotAllowed as NotAllowed
    from recovery.driver.tree.identity import WrongJob as WrongJob
    from recovery.driver.tree.owned import FencedOff as FencedOff
    from recovery.driver.tree.owned import JournalInDoubt as JournalInDoubt
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
    from recovery.savepoints.repair import CannotRepair as CannotRepair
    from recovery.savepoints.repair import repair as repair
    from recovery.savepoints.rescaling import CannotRescale as CannotRescale
    from recovery.savepoints.rescaling import rescale as rescale
    from recovery.schemes.passive import Passive as Passive
    from snapshot.host.protocol.options import Following as Following

_HOME = {
    "attached": ("Attached", "CommandDeclined", "ConnectionLost", "attach"),
    "driver.attempts.failures": ("JobFailed",),
    "driver.claim": ("StartRefused",),
    "driver.launchers.java_archive": ("NoJavaArchive", "quick_java"),
    "driver.launchers.launch": ("CannotLaunch",),
    "driver.launchers.local_processes": ("LocalProcesses",),
    "driver.launchers.spark_settings": ("spark_settings",),
    "driver.launchers.spark_tasks": ("SparkTasks",),
    "driver.report.status": ("RunState", "RunStatus"),
    "driver.settings.options": ("Tls", "UnknownOption", "UnusableTls"),
    "driver.settings.program_fit": ("ProgramDoesNotFit",),
    "driver.tree.address": ("JobNotRunning", "NotAllowed"),
    "driver.tree.identity": ("WrongJob",),
    "driver.tree.owned": ("FencedOff", "JournalInDoubt"),
    "offline.epoch_choice": ("OutputWouldRepeat",),
    "offline.job_tree": ("NoSuchEpoch", "UnusableEpoch", "open_tree"),
    "offline.new_tree": ("TargetExists",),
    "offline.stopped_job": ("JobRuns",),
    "restart_strategies": ("ExponentialDelay", "FailureRate", "FixedDelay", "NoRestart"),
    "running": ("Run", "run"),
    "savepoints.bootstrapping": ("StateFrom", "bootstrap"),
    "savepoints.copying": ("copy", "fork", "move"),
    "savepoints.data_frames": ("register",),
    "savepoints.editing": ("ChangedBy", "ChangedRows", "edit"),
    "savepoints.repair": ("CannotRepair", "repair"),
    "savepoints.rescaling": ("CannotRescale", "rescale"),
    "schemes.passive": ("Following", "Passive"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    module = _MODULE_OF.get(name)
    if module is None:
        here = sys.modules[__name__]  # told so that Python says which name is near
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=here)
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
