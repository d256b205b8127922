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
    from recovery.driver.birth import WrongJob as WrongJob
    from recovery.driver.claim import StartRefused as StartRefused
    from recovery.driver.failures import JobFailed as JobFailed
    from recovery.driver.java_archive import NoJavaArchive as NoJavaArchive
    from recovery.driver.java_archive import quick_java as quick_java
    from recovery.driver.launch import CannotLaunch as CannotLaunch
    from recovery.driver.local_processes import LocalProcesses as LocalProcesses
    from recovery.driver.options import Tls as Tls
    from recovery.driver.options import UnknownOption as UnknownOption
    from recovery.driver.options import UnusableTls as UnusableTls
    from recovery.driver.program_fit import ProgramDoesNotFit as ProgramDoesNotFit
    from recovery.driver.reach import JobNotRunning as JobNotRunning
    from recovery.driver.reach import NotAllowed as NotAllowed
    from recovery.driver.spark_settings import spark_settings as spark_settings
    from recovery.driver.spark_tasks import SparkTasks as SparkTasks
    from recovery.driver.status import RunState as RunState
    from recovery.driver.status import RunStatus as RunStatus
    from recovery.driver.tree import FencedOff as FencedOff
    from recovery.driver.tree import JournalInDoubt as JournalInDoubt
    from recovery.passive import Passive as Passive
    from recovery.restart_strategies import ExponentialDelay as ExponentialDelay
    from recovery.restart_strategies import FailureRate as FailureRate
    from recovery.restart_strategies import FixedDelay as FixedDelay
    from recovery.restart_strategies import NoRestart as NoRestart
    from recovery.running import Run as Run
    from recovery.running import run as run
    from recovery.savepoints.bootstrapping import StateFrom as StateFrom
    from recovery.savepoints.bootstrapping import bootstrap as bootstrap
    from recovery.savepoints.coming_back import OutputWouldRepeat as OutputWouldRepeat
    from recovery.savepoints.copying import copy as copy
    from recovery.savepoints.copying import fork as fork
    from recovery.savepoints.copying import move as move
    from recovery.savepoints.data_frames import register as register
    from recovery.savepoints.editing import ChangedBy as ChangedBy
    from recovery.savepoints.editing import ChangedRows as ChangedRows
    from recovery.savepoints.editing import edit as edit
    from recovery.savepoints.job_tree import NoSuchEpoch as NoSuchEpoch
    from recovery.savepoints.job_tree import UnusableEpoch as UnusableEpoch
    from recovery.savepoints.job_tree import open_tree as open_tree
    from recovery.savepoints.new_tree import TargetExists as TargetExists
    from recovery.savepoints.repair import CannotRepair as CannotRepair
    from recovery.savepoints.repair import repair as repair
    from recovery.savepoints.rescaling import CannotRescale as CannotRescale
    from recovery.savepoints.rescaling import rescale as rescale
    from recovery.savepoints.stopped_job import JobRuns as JobRuns
    from snapshot.host.options import Following as Following

_HOME = {
    "attached": ("Attached", "CommandDeclined", "ConnectionLost", "attach"),
    "driver.birth": ("WrongJob",),
    "driver.claim": ("StartRefused",),
    "driver.failures": ("JobFailed",),
    "driver.java_archive": ("NoJavaArchive", "quick_java"),
    "driver.launch": ("CannotLaunch",),
    "driver.local_processes": ("LocalProcesses",),
    "driver.options": ("Tls", "UnknownOption", "UnusableTls"),
    "driver.program_fit": ("ProgramDoesNotFit",),
    "driver.reach": ("JobNotRunning", "NotAllowed"),
    "driver.spark_settings": ("spark_settings",),
    "driver.spark_tasks": ("SparkTasks",),
    "driver.status": ("RunState", "RunStatus"),
    "driver.tree": ("FencedOff", "JournalInDoubt"),
    "passive": ("Following", "Passive"),
    "restart_strategies": ("ExponentialDelay", "FailureRate", "FixedDelay", "NoRestart"),
    "running": ("Run", "run"),
    "savepoints.bootstrapping": ("StateFrom", "bootstrap"),
    "savepoints.coming_back": ("OutputWouldRepeat",),
    "savepoints.copying": ("copy", "fork", "move"),
    "savepoints.data_frames": ("register",),
    "savepoints.editing": ("ChangedBy", "ChangedRows", "edit"),
    "savepoints.job_tree": ("NoSuchEpoch", "UnusableEpoch", "open_tree"),
    "savepoints.new_tree": ("TargetExists",),
    "savepoints.repair": ("CannotRepair", "repair"),
    "savepoints.rescaling": ("CannotRescale", "rescale"),
    "savepoints.stopped_job": ("JobRuns",),
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
