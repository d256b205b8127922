"""The errors of all three packages: one base, and five families.

    try:
        run = recovery.run(program, spark, checkpoints="s3://bucket/clicks")
    except EpochcutError as error:
        print(error)

An error says what happened, to which uid, epoch or file, and what to do. Some are also one of Python's own kinds, such
as `ValueError`. A function of yours that fails is raised as it is, or named in `JobFailed`; a kit that finds a broken
promise raises `AssertionError`.
"""

from __future__ import annotations

from statebackend.readable import readable


class EpochcutError(Exception):
    """The base of all errors of epochcut.

    Python prints the text of an error that is not caught, so control characters of a record, of a server or of a
    foreign tree are escaped in it.
    """

    def __str__(self) -> str:
        return readable(super().__str__())


class ProgramError(EpochcutError):
    """The program is wrong, breaks a rule while it runs, or does not fit the state that a job left."""


class OptionError(EpochcutError):
    """An option does not exist, has a value that makes no sense, or contradicts another one."""


class StoreError(EpochcutError):
    """A store, a local disk or a file in them cannot be read or written, is damaged, or is of a newer version."""


class JobError(EpochcutError):
    """A job cannot start, cannot go on, or does not answer; its sources, its sinks and its connections included."""


class SavepointError(EpochcutError):
    """An epoch or a savepoint cannot be read, copied, changed or made as it was asked for."""
