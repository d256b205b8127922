"""The classes that Spark's Java loads, kept in a file that later starts map into memory: those take half as long.

Invariant: Java uses such a file only if it was made by the same Java of the same jars, and starts as usual if
not; a file has its name only when it is whole.

    python -m recovery.driver.launchers.java_archive FILE      makes one, in a Spark application of its own
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Final

from statebackend.child_python import command_of, environment
from statebackend.errors import JobError

_MODULE: Final = "recovery.driver.launchers.java_archive"
_CACHE: Final = "epochcut"
_SILENT: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""Java says so if a file is not right, on the output of the program."""

_LEAST: Final = 17
"""The oldest Java with which Spark runs."""

_TOLD: Final = 60
"""So many lines of what went wrong are told."""


class NoJavaArchive(JobError):
    """The file could not be made; the message says why. Spark starts without it, more slowly."""


def quick_java(options: str = "", folder: str | Path | None = None) -> Mapping[str, str]:
    """Return settings for a session's builder with which the Java processes of Spark start in half the time.

    They have these `options` of Java besides. Where this is called first, what Java loads is written into a file of 130
    MB in the folder, which takes ten seconds and more; `NoJavaArchive` if that fails. From then on it is there, until
    Java or Spark is another one. By default the folder is in the user's cache. Java trusts the file as it trusts a jar:
    any user who can write to a shared folder can run code in the Java of all its users. Executors on other hosts
    start quickly if the file is there as well, at the same path; where it is not, they start as usual.
    """
    file = Path(folder or _default_folder()).absolute() / f"spark-{_fingerprint()}.jsa"
    if not file.exists():
        _make(file)
    # Spark takes them apart as a shell does, and the folder may have a space in its name.
    all_options = f'{options} "-XX:SharedArchiveFile={file}" {_SILENT}'.lstrip()
    return {f"spark.{process}.extraJavaOptions": all_options for process in ("driver", "executor")}


def _default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / _CACHE


def _fingerprint() -> str:
    """Return a name for the Java and the Spark found here: another one means that a new file is due.

    Java itself is stricter.
    """
    import pyspark

    java = _java()
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    parts = [pyspark.__version__, str(java), str(spark), *(_changed(place) for place in (java, spark / "jars"))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _java() -> Path:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java") if home is None else str(Path(home) / "bin" / "java")
    if found is None or not Path(found).exists():
        raise NoJavaArchive(f"there is no Java at {found or 'the PATH'}; install Java {_LEAST}, or set JAVA_HOME")
    return Path(found).resolve()


def _changed(place: Path) -> str:
    return str(place.stat().st_mtime_ns) if place.exists() else ""


def _make(file: Path) -> None:
    new = file.with_name(f"{file.name}.{token_hex(8)}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Java writes the file when it ends; what it says on the way is nobody's business unless there is none.
        # It starts Python itself, as `python -m pyspark.daemon`, which is not to look in the folder where it works.
        done = subprocess.run(
            command_of(_MODULE, [str(new)]),
            env={**environment(), "PYTHONSAFEPATH": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not new.exists():
            said = "\n".join(done.stdout.splitlines()[-_TOLD:])
            raise NoJavaArchive(f"Java has written no {file}, and ended with exit code {done.returncode}: {said}")
        new.replace(file)
    except OSError as error:
        raise NoJavaArchive(f"{file} could not be made: {error}") from error
    finally:
        new.unlink(missing_ok=True)


def main(file: str) -> None:
    """Start Spark, have it do what jobs ask of it, and let Java write what it has loaded when it ends."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    builder = builder.config("spark.driver.extraJavaOptions", f'"-XX:ArchiveClassesAtExit={file}"')
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    java = spark.sparkContext._gateway.proc
    spark.sparkContext.parallelize([0], 1).mapPartitions(list).collect()
    spark.range(1).mapInArrow(iter, "id long").collect()
    spark.stop()
    java.stdin.close()  # at which it ends
    java.wait()


if __name__ == "__main__":
    main(sys.argv[1])
