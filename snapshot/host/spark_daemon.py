"""Spark's own daemon for Python workers, with all loaded that a partition's process needs before it forks one.

Invariant: it does for every Python task of an application what `pyspark.daemon` does; its processes only begin
with more modules loaded.

    spark.python.daemon.module=snapshot.host.spark_daemon
"""

from __future__ import annotations

from importlib import import_module

from pyspark import daemon

from snapshot.host.process.preload import preload, wanted_modules


def main() -> None:
    """Run the command that Spark runs on each executor, with the workers' module as argument, as for Spark's own."""
    preload(wanted_modules())
    import_module("pyspark.worker")
    daemon.manager()


if __name__ == "__main__":
    main()
