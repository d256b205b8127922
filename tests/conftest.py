"""How far the searches go (profiles), and how far they went; that files of tests are in memory, if it has room; and
that tests which need no server have no more modules than `make test` installs.

A flush to a disk takes many times as long, and no test can tell whether one was on a disk.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

from snapshot.testing.simulation import EXPLORED
from tests.extras import hide, hide_from_processes, not_brought_by, shown_to_processes
from tests.java import JAVA, JAVA_ARCHIVE

FACTORS = {"ci": 1, "thorough": 50}
"""How much further than in CI a profile searches; chosen by EPOCHCUT_PROFILE, as `make test PROFILE=thorough` does."""
SAMPLES = {"ci": 1, "thorough": 200}
"""The same for the longest searches, of which CI has a sample."""
EXAMPLES = {"ci": 50, "thorough": 5_000}
"""Of each property."""

FIRST = "test_java_archive.py"
"""Makes a file with which all later tests with Spark start sooner."""

LONG = {
    "test_cluster_executors.py",
    "test_clusters.py",
    "test_examples.py",
    "test_executor_faults.py",
    "test_file_sink_hdfs.py",
    "test_pages.py",
    "test_planted_errors.py",
    "test_running_on_spark.py",
    "test_simulated_replicas.py",
    "test_spark_format.py",
    "test_spark_state.py",
    "test_state_kills.py",
    "test_structured_modes.py",
    "test_structured_streaming.py",
    "test_tls_jobs.py",
    "test_whole_job.py",
}
"""The files whose tests take longest."""

_PROFILE = os.environ.get("EPOCHCUT_PROFILE", "ci")
if _PROFILE not in FACTORS:
    raise pytest.UsageError(f"there is no profile {_PROFILE!r}; choose one of {', '.join(FACTORS)}")

for _name, _examples in EXAMPLES.items():
    settings.register_profile(_name, max_examples=_examples, deadline=None, derandomize=_name == "ci")
settings.load_profile(_PROFILE)

_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 3 << 30
"""Bytes that have to be free for the files of tests, which need some hundreds of megabytes at once."""

_FAILED: Final = pytest.StashKey[bool]()

_WITHOUT_SERVERS: Final = "not servers"
"""The choice of `make test`."""
_SPECS: Final = "specs"
"""That of `make test-specs`."""
_HIDDEN: Final = pytest.StashKey[list[str]]()
_PANDAS: Final = "pandas"
"""Comes with the extra for Spark, and takes each process longer to load than all that the process needs."""


def _forget(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # and not one that a test has forked
        shutil.rmtree(folder, ignore_errors=True)


if "TMPDIR" not in os.environ and _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free >= _ROOM:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-", dir=_MEMORY)  # of all processes
    Path(os.environ["TMPDIR"]).chmod(0o711)  # servers of other users have their files in it
    # With what processes that were killed have left in it.
    atexit.register(_forget, os.environ["TMPDIR"], os.getpid())

# Processes that tests start, of which there are many, would each compile all modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What Java would gain from compiling better it has lost again when a test ends. A file of what Spark's Java loads saves
# each start a third; Java starts without it, and says nothing, where there is none or it was made for another Spark.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS", f'{JAVA} "-XX:SharedArchiveFile={JAVA_ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off'
)


def pytest_configure(config: pytest.Config) -> None:
    """Hide what only other extras bring from tests that need no server; processes of xdist are started without it.

    Pandas is hidden from the processes that tests start, as it is not there where jobs run without Spark.
    """
    if config.option.markexpr == _WITHOUT_SERVERS and not hasattr(config, "workerinput"):
        hidden = not_brought_by("test")
        config.stash[_HIDDEN] = hidden
        hide(hidden)
    if config.option.markexpr == _WITHOUT_SERVERS and not config.getoption("numprocesses", None):  # here run tests
        hide_from_processes([_PANDAS])


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out tests against servers, whose clients need not be there, and of TLC unless they alone are chosen."""
    here, chosen = Path(__file__).parent, config.option.markexpr
    left_out = chosen == _WITHOUT_SERVERS and collection_path == here / "servers"
    left_out |= chosen != _SPECS and collection_path == here / "specs" / "test_specs.py"
    return left_out or None


@pytest.fixture(scope="module")
def with_pandas() -> Iterator[None]:
    """Processes that are started for tests of a module find pandas, as most do where there is Spark."""
    with shown_to_processes(_PANDAS):
        yield


@pytest.fixture
def search_factor() -> int:
    """How much further than in CI to search."""
    return FACTORS[_PROFILE]


@pytest.fixture
def sample_factor() -> int:
    """How much further than in CI, which has a sample of them, the longest searches go."""
    return SAMPLES[_PROFILE]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The long files come first: else one process has them left when the others have nothing to do.

    Before them comes what makes them shorter.

    What is marked as `thorough` is left to that profile.
    """
    if _PROFILE == "ci":
        further = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=further)
        items[:] = [item for item in items if item not in further]
    items.sort(key=lambda item: (item.path.name != FIRST, item.path.name not in LONG))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The files of a test that has passed go; its folder stays, as stores in memory are known by names of folders."""
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    elif call.when == "teardown" and _FAILED not in item.stash:
        folder = getattr(item, "funcargs", {}).get("tmp_path")
        for entry in folder.iterdir() if folder is not None and folder.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that runs a part of the tests says how far it went."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        # As text: numbers of more than 32 bits do not get through.
        output["explored"] = json.dumps([EXPLORED.steps, EXPLORED.histories, sorted(EXPLORED.seen), EXPLORED.met])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Another process has run its part of the tests."""
    none = "[0, 0, [], {}]"
    steps, histories, seen, met = json.loads(getattr(node, "workeroutput", {}).get("explored", none))
    EXPLORED.steps += steps
    EXPLORED.histories += histories
    EXPLORED.seen.update(seen)
    EXPLORED.met.update(met)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what the simulations of this run have explored, and which modules were hidden from it."""
    terminalreporter.write_line(f"explored in simulation: {EXPLORED}")
    if hidden := config.stash.get(_HIDDEN, []):
        terminalreporter.write_line(f"hidden, as epochcut[test] does not bring them: {', '.join(hidden)}")
