"""The error of all that tells other systems about a job."""

from __future__ import annotations

from statebackend.errors import OptionError


class CannotTell(OptionError):
    """The job's metrics or traces cannot be given where they are asked for."""
