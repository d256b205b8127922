"""A program that is started from an epoch: the newest, an older one, in its own tree, without some of its state."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from recovery.decisions.notes import from_json
from recovery.driver.settings.program_fit import ProgramDoesNotFit
from recovery.driver.tree import address as reach
from recovery.offline import stopped_job
from recovery.offline.epoch_choice import OutputWouldRepeat
from recovery.offline.job_tree import open_tree
from recovery.offline.stopped_job import JobRuns
from recovery.savepoints.programs import NoSuchProgram, program_from
from recovery.savepoints.restoring import BeyondMaximum, plan_restore_of, restore
from snapshot import Collection, Program, Stream, ToDriver
from snapshot.host.protocol.messages import Address
from statebackend.columns import schema_of
from statebackend.durations import NotADuration
from tests.jobs.running_job import RunningJob
from tests.stopped_trees import PATIENCE, ROWS, Stopped, add_output, stop_one


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stop_one(tmp_path_factory.mktemp("stopped"))


@pytest.fixture
def stopped(original: Stopped, tmp_path: Path) -> Stopped:
    return original.copied(tmp_path)


def other_program() -> Program:
    rows = Stream.read(Collection([("a", 1)], schema_of({"k": str, "v": int})), uid="others")
    return rows.key_by("k").sum("v", uid="sums").write(ToDriver(), uid="out")


# --- what is started


@pytest.mark.timeout(180)
def test_an_older_epoch_is_gone_back_to_and_what_came_after_it_is_made_again(stopped: Stopped) -> None:
    oldest, *later = [record.epoch for record in stopped.tree.state.usable]
    later.append(add_output(stopped))
    stopped.settings.gate.touch()
    with pytest.raises(OutputWouldRepeat):
        restore(stopped.tree, str(oldest), stopped.program())
    run = restore(
        stopped.tree,
        str(oldest),
        stopped.program(),
        accept_duplicates=True,
        local=stopped.folder / "local",
        every="100ms",
    )
    run.wait(PATIENCE)
    epochs = {record.epoch for record in stopped.tree.state.usable}
    assert not epochs & set(later)
    assert rows(stopped) == set(range(ROWS)), "none is lost"
    assert run.status().parallelism == 2, "that of the epoch"


@pytest.mark.timeout(180)
def test_a_restore_that_claims_nothing_runs_as_a_job_of_its_own(stopped: Stopped, tmp_path: Path) -> None:
    into, before = str(tmp_path / "own"), stopped.tree.state
    stopped.settings.gate.touch()
    run = restore(
        stopped.tree, "newest", stopped.program(), into=into, parallelism=1, local=tmp_path / "local", every="100ms"
    )
    run.wait(PATIENCE)
    assert run.job == open_tree(into).birth.job != stopped.job
    assert stopped.tree.state.epochs == before.epochs
    assert run.status().parallelism == 1


@pytest.mark.timeout(180)
def test_an_operator_whose_state_is_ignored_begins_anew_and_the_others_go_on(stopped: Stopped) -> None:
    before = numbers(stopped)
    stopped.settings.gate.touch()
    run = restore(
        stopped.tree,
        "newest",
        stopped.program(),
        ignore_state=["numbers"],
        local=stopped.folder / "local",
        every="100ms",
    )
    run.wait(PATIENCE)
    assert rows(stopped) == set(range(ROWS)), "the source went on where it was"
    after = numbers(stopped)
    assert after.count(1) == 2 * before.count(1) > 0, "each key has a first row once more"
    stopped.finish()
    assert numbers(stopped) == after, "later epochs are restored with all they have"


def numbers(stopped: Stopped) -> list[object]:
    return [row["number"] for row in RunningJob(stopped.settings).output()]


def rows(stopped: Stopped) -> set[object]:
    return {row["row"] for row in RunningJob(stopped.settings).output()} - {-1}


# --- what does not fit


def test_a_program_that_does_not_fit_changes_nothing(stopped: Stopped, tmp_path: Path) -> None:
    oldest, before = str(stopped.tree.state.usable[0].epoch), stopped.tree.state.number
    for into in (None, str(tmp_path / "own")):
        with pytest.raises(ProgramDoesNotFit, match="removed: numbers, with keyed state"):
            restore(stopped.tree, oldest, other_program(), into=into, accept_duplicates=True)
    assert stopped.tree.state.number == before
    assert not (tmp_path / "own").exists()
    plan = plan_restore_of(stopped.tree, "newest", other_program(), allow_non_restored_state=True)
    assert plan.epoch == stopped.tree.record().epoch


def test_only_what_the_epoch_has_can_be_ignored_and_no_output_that_is_not_committed(stopped: Stopped) -> None:
    with pytest.raises(ProgramDoesNotFit, match="has no such operator, but numbers, out, rows"):
        plan_restore_of(stopped.tree, "newest", stopped.program(), ignore_state=["nobody"])
    add_output(stopped)
    with pytest.raises(ProgramDoesNotFit, match="has its output that is not committed yet"):
        plan_restore_of(stopped.tree, "newest", stopped.program(), ignore_state=["out"])
    plan_restore_of(stopped.tree, "newest", stopped.program(), ignore_state=["numbers"])


def test_the_output_of_a_sink_that_is_gone_is_no_matter_for_a_job_of_its_own(stopped: Stopped, tmp_path: Path) -> None:
    add_output(stopped)
    with pytest.raises(ProgramDoesNotFit, match="out, with output that is not committed yet"):
        plan_restore_of(stopped.tree, "newest", without_out(stopped), allow_non_restored_state=True)
    into = str(tmp_path / "own")
    plan_restore_of(stopped.tree, "newest", without_out(stopped), allow_non_restored_state=True, into=into)


def without_out(stopped: Stopped) -> Program:
    (output,) = stopped.program().outputs
    return Stream(output.input).write(ToDriver(), uid="other")


def test_more_partitions_than_key_groups_are_refused(stopped: Stopped) -> None:
    with pytest.raises(BeyondMaximum, match="1 to the maximum parallelism 128"):
        plan_restore_of(stopped.tree, "newest", stopped.program(), parallelism=129)


def test_a_fork_for_a_restore_says_where_it_comes_from(stopped: Stopped, tmp_path: Path) -> None:
    into = str(tmp_path / "own")
    run = restore(stopped.tree, "newest", stopped.program(), into=into, local=tmp_path / "local", retain=9)
    run.cancel()
    tree = open_tree(into)
    origin = from_json(tree.manifest(tree.state.usable[0]).notes).origin
    assert origin is not None
    assert (origin.how, origin.uri) == ("fork", stopped.uri)


# --- programs by name


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for modules, which is forgotten again."""
    path, known = list(sys.path), set(sys.modules)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if name.startswith("program_"):
            del sys.modules[name]


_MAKES = """
from tests.test_restoring import other_program
made = other_program()
def program():
    return made
def wants(argument):
    return made
def raises():
    raise KeyError("no such table")
def nothing():
    return None
"""


@pytest.mark.parametrize("name", ["program_a.py:program", "program_a.py:made", "program_a:program", "program_a:made"])
def test_a_program_is_found_in_a_file_or_a_module_as_a_function_or_an_attribute(modules: Path, name: str) -> None:
    (modules / "program_a.py").write_text(_MAKES)
    assert program_from(name).explain() == other_program().explain()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("program_b", "names no program; write module:function"),
        ("program_b.py:", "names no program"),
        ("program_none.py:program", "there is no file program_none.py"),
        ("program_none:program", "cannot be imported: ModuleNotFoundError: No module named 'program_none'"),
        ("program_b.py:nobody", "program_b.py has no 'nobody'; there are made"),
        ("program_b.py:nothing", "is no program, but NoneType"),
        ("program_b.py:wants", "TypeError: wants.. missing 1 required positional argument"),
        ("program_b.py:raises", r"KeyError: 'no such table' \(in .*program_b.py, line 9\)"),
        ("program_broken.py:program", r"cannot be imported: ZeroDivisionError: division by zero \(in .*, line 1\)"),
        ("program_odd.py:program", "cannot be imported: SyntaxError"),
        ("program-odd.py:program", "is an identifier, which 'program-odd' is not"),
        ("../program_b:program", "is no name of a module; a file's ends in .py"),
        ("argparse.py:program", "another module is called 'argparse'"),
    ],
)
def test_what_is_wrong_with_a_name_is_said_in_one_sentence(modules: Path, name: str, said: str) -> None:
    (modules / "program_b.py").write_text(_MAKES)
    (modules / "program_broken.py").write_text("1 / 0")
    (modules / "program_odd.py").write_text("def program(:")
    (modules / "program-odd.py").write_text("")
    (modules / "argparse.py").write_text("")
    with pytest.raises(NoSuchProgram, match=said) as raised:
        program_from(name)
    assert "\n" not in str(raised.value)


def test_a_restore_with_an_empty_local_folder_still_finds_the_job_that_runs(
    stopped: Stopped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, number = tmp_path / "home", stopped.tree.state.number
    home.mkdir()
    monkeypatch.setattr(stopped_job, "home_of", lambda _: home)
    monkeypatch.setattr(stopped_job, "_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:  # its kernel accepts, and nobody says a word
        address = Address(*server.getsockname())
        reach.leave(home, reach.Reach(stopped.job, stopped.tree.uri, address, os.getpid(), b"s" * 32))
        with pytest.raises(JobRuns):
            restore(stopped.tree, "newest", other_program(), local="")
    assert stopped.tree.look_again().state.number == number


def test_a_restore_with_an_option_that_is_refused_changes_nothing(stopped: Stopped, tmp_path: Path) -> None:
    oldest, number = stopped.tree.state.usable[0].epoch, stopped.tree.state.number
    with pytest.raises(NotADuration, match="interrupt_timeout: 'soon'"):
        restore(
            stopped.tree,
            str(oldest),
            stopped.program(),
            accept_duplicates=True,
            local=stopped.folder / "local",
            interrupt_timeout="soon",
        )
    with pytest.raises(NotADuration, match="every: 'soon'"):
        restore(stopped.tree, "newest", stopped.program(), into=str(tmp_path / "own"), every="soon")
    assert stopped.tree.look_again().state.number == number
    assert not (tmp_path / "own").exists()
