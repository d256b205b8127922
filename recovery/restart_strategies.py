"""The strategies among which a user chooses how often, and after which pause, a job whose attempt broke is tried again.

Invariant: a strategy is plain data, checked when it is made; times are durations such as "10s" or numbers of
milliseconds. What follows from it is decided in `recovery.decisions.restarts`. The names are those that stream engines
use.
"""

from __future__ import annotations

from dataclasses import dataclass

from statebackend.durations import Duration, milliseconds


@dataclass(frozen=True, slots=True)
class NoRestart:
    """The first failure ends the job. Started again by hand, it goes on from its last complete epoch."""


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """So many restarts in the whole life of the driver, each `delay` after its failure."""

    attempts: int
    delay: Duration = 0

    def __post_init__(self) -> None:
        _check_count("attempts", self.attempts)
        milliseconds(self.delay)


@dataclass(frozen=True, slots=True)
class FailureRate:
    """Restarts, each `delay` after its failure, as long as there were not more than `failures` in any `interval`."""

    failures: int = 20
    interval: Duration = "5m"
    delay: Duration = 0

    def __post_init__(self) -> None:
        _check_count("failures", self.failures)
        milliseconds(self.delay)
        if milliseconds(self.interval) < 1:
            raise ValueError(f"a rate of restarts needs an interval of time, not {self.interval!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialDelay:
    """Restarts after delays that grow, while attempts fail one after the other; the delay starts anew when they do not.

    The first restart comes at once, the second after `initial_backoff`, each further one `multiplier` times later than
    the one before, up to `max_backoff`. A delay is made longer or shorter by up to `jitter` of it, by chance, so that
    jobs that failed together do not come back together.
    """

    initial_backoff: Duration = "1s"
    max_backoff: Duration = "1m"
    multiplier: float = 1.5
    reset_after: Duration = "1h"
    """An attempt that has lived for so long starts the delays anew. So does one that has completed an epoch, as the
    job has come further then; but see `at_once`."""
    jitter: float = 0.1
    attempts: int | None = None
    """After so many failures one after the other the job is given up; None: never."""
    at_once: bool = True
    """If False, the first restart waits for `initial_backoff` too, and epochs do not start the delays anew."""

    def __post_init__(self) -> None:
        least, most = milliseconds(self.initial_backoff), milliseconds(self.max_backoff)
        if not 1 <= least <= most:
            raise ValueError(
                f"a restart after {self.initial_backoff!r} that grows to {self.max_backoff!r}: the first must be "
                "positive, and no longer than the last"
            )
        if self.multiplier < 1 or not 0 <= self.jitter < 1:
            raise ValueError(
                f"restarts with multiplier {self.multiplier} and jitter {self.jitter}: expected a multiplier of at "
                "least 1 and a jitter from 0 to below 1"
            )
        if milliseconds(self.reset_after) < 1:
            raise ValueError(f"the delays of restarts cannot start anew after {self.reset_after!r}")
        if self.attempts is not None:
            _check_count("attempts", self.attempts)


Restarts = NoRestart | FixedDelay | FailureRate | ExponentialDelay


def _check_count(name: str, count: int) -> None:
    if count < 1:
        raise ValueError(f"{count} {name} before no restart follows: expected at least one")
