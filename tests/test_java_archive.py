"""A file of what Spark's Java loads at its start: made once, used by the next Java, and not needed by any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import recovery
from tests.java import JAVA, keep
from tests.test_child_python import add_impostors

ROOT = Path(__file__).parent.parent
PATIENCE = 280

START = """
import os, sys
from pyspark import SparkConf, SparkContext
import recovery

settings = recovery.quick_java(sys.argv[1], sys.argv[2])
os.chdir(sys.argv[2])
conf = SparkConf().setMaster("local[1]").set("spark.ui.enabled", "false").setAll(list(settings.items()))
print(SparkContext(conf=conf).parallelize([7], 1).map(str).collect())
"""


def started(options: str, folder: Path, where: Path) -> subprocess.CompletedProcess[str]:
    spark = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-P", "-c", START, options, str(folder)],
        cwd=where,
        env={**os.environ, **spark, "JDK_JAVA_OPTIONS": JAVA},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_java_starts_from_the_file_and_without_it_where_it_is_not_right(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    was_run = add_impostors(tmp_path)
    first = started("-Xshare:on", folder, tmp_path)  # with which Java only starts if it can use the file
    assert not was_run.exists(), was_run.read_text()
    assert first.stdout.split() == ["['7']"], first.stderr
    (file,) = folder.glob("*.jsa*")
    keep(file)
    file.chmod(0o600)
    file.write_bytes(b"foreign" * 100_000)
    damaged = started("", folder, folder)
    assert damaged.stdout.split() == ["['7']"], damaged.stderr
    assert list(folder.glob("*.jsa*")) == [file]


def test_a_file_that_cannot_be_made_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'no memory is left'\nexit 1\n")
    java.chmod(0o700)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(recovery.NoJavaArchive, match=r"(?s)Java has written no .*no memory is left"):
        recovery.quick_java(folder=tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []


def test_without_java_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(recovery.NoJavaArchive, match="install Java 17, or set JAVA_HOME"):
        recovery.quick_java(folder=tmp_path)
