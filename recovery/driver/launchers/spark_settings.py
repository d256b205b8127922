"""The settings of a Spark session for jobs that run for ever, and which of them a session has.

Invariant: a job runs on a session without any of these settings, too; each only makes something quicker or
safer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

DAEMON: Final = ("spark.python.daemon.module", "snapshot.host.spark_daemon")


def spark_settings() -> Mapping[str, str]:
    """Return settings for a session's builder, or for `spark-submit --conf`; a running session cannot change them.

    - `spark.python.daemon.module=snapshot.host.spark_daemon`: Python processes are forked from one that has loaded all
      that they need, so that one comes back a good half second sooner. This package has to be installed wherever the
      Python of the executors is, or be on the `PYTHONPATH` that they start with: `--py-files` come too late for it.
    - `spark.task.maxFailures=1000000`: a task that was killed is started again by Spark itself, which is the quickest
      way; how often a job may come back is `Passive(restarts=...)`. With a master of `local[N]` Spark ignores the
      setting: say `local[N, 1000000]`.
    - `spark.executor.maxNumFailures=1000000`: on YARN and Kubernetes an executor that was killed is replaced however
      often that happens; else all are ended when an application has lost twice as many as it wants, and it may fail.
      In YARN's cluster mode it comes too late from a builder: `spark-submit` has to be given it.
    - `spark.scheduler.minRegisteredResourcesRatio=1`: all executors are there before a job counts task slots.
    - `spark.speculation`, `spark.dynamicAllocation.enabled` and `spark.excludeOnFailure.enabled` off: a task that never
      ends is neither slow nor idle, and is started again where its files are.

    Not among them, as they need a file: those of `quick_java`, with which a driver or an executor that was killed is
    there again sooner.
    """
    return {
        DAEMON[0]: DAEMON[1],
        "spark.task.maxFailures": "1000000",
        "spark.executor.maxNumFailures": "1000000",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.speculation": "false",
        "spark.dynamicAllocation.enabled": "false",
        "spark.excludeOnFailure.enabled": "false",
    }


def daemon_of(setting: Callable[[str, str], str]) -> str:
    """Return the module from which a session forks its Python processes."""
    return setting(DAEMON[0], "pyspark.daemon")
