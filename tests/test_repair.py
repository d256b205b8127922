"""Trees whose journal or `job.json` is lost: refused before anything is written, repaired, and gone on with exactly."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.command.exits import Exit
from recovery.driver.claim import claim
from recovery.driver.settings.job import JobSettings
from recovery.driver.tree.evidence import DamagedTree
from recovery.driver.tree.identity import BirthLost, find_birth, wanted_birth
from recovery.driver.tree.owned import FencedOff, propose
from recovery.events import EpochCommitted
from recovery.offline import fail_points
from recovery.offline.epoch_choice import OutputWouldRepeat
from recovery.offline.job_tree import journal_of, open_tree
from recovery.offline.stopped_job import JobRuns
from recovery.savepoints.repairing import CannotRepair, repair
from recovery.savepoints.verifying import verify, what_to_verify
from snapshot.ids import JobId
from snapshot.journal.entries import Claimed, Committed, Completed, Entry, Pinned, Removed, UnderRepair
from snapshot.journal.entry_json import decode_entry, encode_entry
from snapshot.journal.store import fresh_nonce
from snapshot.journal.writer import Fenced, Forgotten, JournalWriter
from snapshot.tree.layout import JournalEntry, path_of
from statebackend.fail_points import at
from statebackend.ids import Generation
from statebackend.stores.local_store import LocalStore
from statebackend.stores.patience import Patience
from tests import shop_job
from tests.command_line import run_command
from tests.jobs.running_job import JobEnded, RunningJob
from tests.stopped_trees import PATIENCE, Stopped, kill_one, stop_one

Capture = pytest.CaptureFixture[str]
Damaging = Callable[[Path], object]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    return stop_one(tmp_path_factory.mktemp("stopped"))


@pytest.fixture(scope="module")
def compacted(original: Stopped, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    """The same, gone on with for some epochs after its journal was compacted."""
    stopped = original.copied(tmp_path_factory.mktemp("compacted"))
    tree = stopped.tree
    journal_of(tree.store).compact(tree.state, tree.state.number)
    run = stopped.start(retain=3)
    while sum(isinstance(event, EpochCommitted) for event in run.events) < 2:
        assert not run._driver.over.wait(0.02), "the job is over"
    run.stop(savepoint=True, timeout=PATIENCE)
    return stopped


@pytest.fixture
def stopped(original: Stopped, tmp_path: Path) -> Stopped:
    return original.copied(tmp_path)


def everything(uri: str) -> dict[str, bytes]:
    return {str(file.relative_to(uri)): file.read_bytes() for file in Path(uri).rglob("*") if file.is_file()}


def entries(tree: Path) -> list[Path]:
    found = sorted((tree / "journal").glob("0*.json"))
    assert len(found) > 4
    return found


def sound(stopped: Stopped) -> bool:
    found = verify(stopped.tree, what_to_verify(stopped.tree))
    return not found.damages and bool(found.sound) and not found.doubtful


def without_newest(many: int) -> Damaging:
    def lose(tree: Path) -> None:
        for file in entries(tree)[-many:]:
            file.unlink()

    return lose


def without_newest_completion(tree: Path) -> None:
    """Its entry, and all that follow."""
    found = entries(tree)
    kinds = [type(decode_entry(int(file.stem), file.read_bytes()).body) for file in found]
    for file in found[len(kinds) - 1 - kinds[::-1].index(Completed) :]:
        file.unlink()


def torn(size: int) -> Damaging:
    def cut(tree: Path) -> None:
        newest = entries(tree)[-1]
        newest.write_bytes(newest.read_bytes()[:size])

    return cut


def without_all(tree: Path) -> None:
    shutil.rmtree(tree / "journal")


def without_name(tree: Path) -> None:
    (tree / "job.json").unlink()


def without_all_and_name(tree: Path) -> None:
    without_all(tree)
    without_name(tree)


WAYS: dict[str, Damaging] = {
    "the oldest": lambda tree: entries(tree)[0].unlink(),
    "one in the middle": lambda tree: entries(tree)[2].unlink(),
    "another in the middle": lambda tree: entries(tree)[3].unlink(),
    "the newest": without_newest(1),
    "the newest two": without_newest(2),
    "the newest three": without_newest(3),
    "the newest four": without_newest(4),
    "the newest completion": without_newest_completion,
    "all": without_all,
    "cut to nothing": torn(0),
    "cut to 20 bytes": torn(20),
    "job.json": without_name,
    "all and job.json": without_all_and_name,
}


def refuse_start(stopped: Stopped) -> None:
    """What a start does up to its claim."""
    with pytest.raises((DamagedTree, BirthLost), match=r"(?s)othing was written.*`recovery repair --checkpoints .*`"):
        start(LocalStore(Path(stopped.uri)), stopped)


def start(store: LocalStore, stopped: Stopped) -> None:
    job, plan = find_birth(store, stopped.uri).job, stopped.program().plan(128)
    settings = JobSettings(job=job, plan=plan, pickled_plan=b"", parallelism=2, store=stopped.uri, local="")
    claim(store, settings, "here", Patience(0))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("which", ["original", "compacted"])
def test_whatever_a_journal_has_lost_nothing_is_written_before_the_refusal_and_repair_makes_it_sound(
    way: str, which: str, tmp_path: Path, capsys: Capture, request: pytest.FixtureRequest
) -> None:
    stopped: Stopped = request.getfixturevalue(which).copied(tmp_path)
    newest = stopped.tree.record().epoch
    savepoints = stopped.tree.savepoints
    WAYS[way](Path(stopped.uri))
    before = everything(stopped.uri)
    refuse_start(stopped)
    assert run_command(capsys, "verify", "--checkpoints", stopped.uri).code == Exit.DAMAGED
    planned = repair(stopped.uri, dry_run=True)
    assert everything(stopped.uri) == before
    assert planned.damages
    done = repair(stopped.uri)
    assert done.done
    assert (done.epoch or newest) == newest
    assert stopped.tree.record().epoch == newest
    assert savepoints <= stopped.tree.savepoints
    assert sound(stopped)
    after = everything(stopped.uri)
    lost = {path: data for path, data in before.items() if after.get(path) != data}
    assert all(after[f"{done.aside}/{path}"] == data for path, data in lost.items()), "what is replaced is kept"
    assert not repair(stopped.uri).damages


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "way",
    [
        "the newest completion",
        "all and job.json",
        *(pytest.param(way, marks=pytest.mark.thorough) for way in ("one in the middle", "cut to 20 bytes")),
    ],
)
def test_a_repaired_job_goes_on_exactly(way: str, stopped: Stopped) -> None:
    WAYS[way](Path(stopped.uri))
    before = everything(stopped.uri)
    with pytest.raises((DamagedTree, BirthLost)):
        stopped.start().wait(PATIENCE)
    assert everything(stopped.uri) == before
    repair(stopped.uri)
    assert stopped.finish().exact


VERBS = (
    ("list",),
    ("show",),
    ("history",),
    ("inspect", "--uid", "numbers", "--key", "1"),
    ("export", "--uid", "numbers", "--state", "total", "--into", "TMP/out"),
    ("rescale", "--to", "3"),
    ("edit", "--uid", "numbers", "--state", "total", "--key", "1", "--set", "5"),
    ("copy", "--into", "TMP/copied"),
    ("fork", "--into", "TMP/forked"),
    ("move", "--into", "TMP/moved"),
    ("gc",),
    ("gc", "--take-over"),
    ("gc", "--take-over", "--dry-run"),
    ("dispose", "--epoch", "newest-savepoint"),
    ("sinks", "list"),
    ("restore", "PROGRAM"),
    ("upgrade", "PROGRAM"),
    ("verify",),
)


@pytest.mark.parametrize("way", ["one in the middle", "the newest", "job.json"])
def test_no_verb_takes_what_is_left_for_the_whole(way: str, stopped: Stopped, capsys: Capture, tmp_path: Path) -> None:
    program = f"{stopped.program_file}:program"
    WAYS[way](Path(stopped.uri))
    before = everything(stopped.uri)
    for verb in VERBS:
        given = [one.replace("TMP", str(tmp_path)).replace("PROGRAM", program) for one in verb]
        tree = [stopped.uri] if verb == ("list",) else ["--checkpoints", stopped.uri]
        said = run_command(capsys, *given, *tree)
        assert said.code == Exit.DAMAGED, (verb, said)
        assert "recovery repair --checkpoints" in said.err + said.out, verb
    assert everything(stopped.uri) == before
    assert not {"copied", "forked", "moved"} & {path.name for path in tmp_path.iterdir()}


def test_the_command_says_what_it_would_do_and_does_it(stopped: Stopped, capsys: Capture) -> None:
    without_newest_completion(Path(stopped.uri))
    before = everything(stopped.uri)
    dry = run_command(capsys, "repair", "--checkpoints", stopped.uri, "--dry-run")
    assert (dry.code, everything(stopped.uri)) == (Exit.DONE, before)
    done = run_command(capsys, "repair", "--checkpoints", stopped.uri)
    assert dry.out == f"{done.out}nothing was done, as this is a dry run\n"
    newest = stopped.tree.record().epoch
    assert f"epoch {newest}: the manifest is whole, and the entry may be among those that are lost" in done.out
    assert f"goes on from epoch {newest}; what is replaced is put aside in aside/" in done.out
    again = run_command(capsys, "repair", "--checkpoints", stopped.uri)
    assert again.out.startswith(f"neither the journal of {stopped.tree.birth.job} nor its job.json is damaged")
    assert run_command(capsys, "repair", "--checkpoints", f"{stopped.uri}/nowhere").code != Exit.DONE
    as_json = run_command(capsys, "repair", "--checkpoints", stopped.uri, "--json").json
    assert (as_json["done"], as_json["damages"]) == (False, [])


def test_a_job_that_is_gone_but_for_its_files_is_not_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/1-0-1-1.sst").write_bytes(b"state")
    with pytest.raises(BirthLost, match=r"job.json is missing, and there are 1 files of state"):
        wanted_birth(LocalStore(tmp_path), str(tmp_path), "clicks", None, 2)
    assert everything(str(tmp_path)) == {"shared/1-0-1-1.sst": b"state"}
    with pytest.raises(CannotRepair, match="no manifest is there that could say whose tree this is"):
        repair(str(tmp_path))


# --- what cannot be repaired without a loss


def test_an_epoch_that_may_be_complete_and_cannot_be_used_is_given_up_only_if_repeated_output_is_accepted(
    stopped: Stopped,
) -> None:
    newest = stopped.tree.record()
    older = stopped.tree.state.usable[-2].epoch
    without_newest_completion(Path(stopped.uri))
    (Path(stopped.uri) / newest.manifest).write_bytes(b"{}")
    before = everything(stopped.uri)
    with pytest.raises(OutputWouldRepeat, match=f"epoch {older} is the newest that can be used, but the output of"):
        repair(stopped.uri)
    assert everything(stopped.uri) == before
    done = repair(stopped.uri, accept_duplicates=True)
    assert (done.epoch, done.given_up) == (older, (newest.epoch,))
    assert (Path(stopped.uri) / done.aside / newest.manifest).read_bytes() == b"{}"
    assert stopped.tree.record().epoch == older
    assert sound(stopped)


@pytest.mark.parametrize("telling", [Committed, Pinned])
def test_an_epoch_that_another_entry_names_is_not_forgotten_with_its_own_entry_and_its_manifest(
    stopped: Stopped, telling: type[Committed | Pinned]
) -> None:
    newest = stopped.tree.record()
    older = stopped.tree.state.usable[-2].epoch
    for file in entries(Path(stopped.uri)):
        body = decode_entry(int(file.stem), file.read_bytes()).body
        of_newest = isinstance(body, Completed | Committed | Pinned) and body.epoch == newest.epoch
        if of_newest and not isinstance(body, telling):
            file.unlink()
    (Path(stopped.uri) / newest.manifest).unlink()
    with pytest.raises(OutputWouldRepeat, match=f"epoch {older} is the newest .* the output of {newest.epoch} may be"):
        repair(stopped.uri)
    done = repair(stopped.uri, accept_duplicates=True)
    assert (done.epoch, done.given_up) == (older, (newest.epoch,))


def test_without_a_sound_epoch_nothing_is_made(stopped: Stopped) -> None:
    without_all(Path(stopped.uri))
    shutil.rmtree(Path(stopped.uri) / "shared")
    before = everything(stopped.uri)
    with pytest.raises(CannotRepair, match="no epoch is sound"):
        repair(stopped.uri, accept_duplicates=True)
    assert everything(stopped.uri) == before


# --- what cannot be told from a crash


def kill_at(folder: Path, point: str) -> Stopped:
    """A job whose driver was killed when it came there for the second time."""
    stopped = Stopped(folder, JobId(""))
    with RunningJob(stopped.settings) as job:
        job.set_crash(driver=f"{point}:2:{folder / 'crashed'}")
        job.start()
        try:
            job.wait_for_kind("Finished")
        except JobEnded:
            job.await_end()
    return stopped


def test_a_driver_that_was_killed_before_it_entered_an_epoch_leaves_a_tree_that_is_not_refused(
    tmp_path: Path, capsys: Capture
) -> None:
    stopped = kill_at(tmp_path, "manifest written")
    tree = stopped.tree
    [doubtful] = tree.doubtful
    assert doubtful > tree.record().epoch
    said = run_command(capsys, "verify", "--checkpoints", stopped.uri)
    assert said.code == Exit.DONE
    assert f"epoch {doubtful} has a manifest and no entry in the journal" in said.out
    assert not repair(stopped.uri).damages
    assert stopped.finish().exact


def test_its_owner_may_know_that_the_newest_entry_was_lost_where_nothing_proves_it(tmp_path: Path) -> None:
    stopped = kill_one(tmp_path)
    newest = stopped.tree.record().epoch
    sorted((Path(stopped.uri) / "journal").iterdir())[-1].unlink()
    assert stopped.tree.doubtful == (newest,)
    done = repair(stopped.uri, entries_lost=True)
    assert (done.epoch, done.made_anew) == (newest, (newest,))
    assert stopped.finish().exact


# --- crashes and others


POINTS = (
    fail_points.REPAIR_BEGUN,
    fail_points.PUT_ASIDE,
    fail_points.JOURNAL_MADE,
    fail_points.REPLACED_GONE,
    fail_points.NAME_MADE,
)


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("point", POINTS)
def test_a_repair_that_is_interrupted_leaves_a_tree_that_is_refused_and_is_done_again(
    point: str, stopped: Stopped
) -> None:
    newest = stopped.tree.record().epoch
    without_newest_completion(Path(stopped.uri))
    without_name(Path(stopped.uri))
    with at(point, interrupt, fail_points.POINTS), pytest.raises(KeyboardInterrupt):
        repair(stopped.uri)
    refuse_start(stopped)
    with pytest.raises((DamagedTree, BirthLost)):
        open_tree(stopped.uri)
    again = repair(stopped.uri)
    assert "a repair was begun, and not ended" in again.damages
    assert again.epoch == stopped.tree.record().epoch == newest
    assert sound(stopped)


def test_a_job_that_runs_is_not_repaired(tmp_path: Path) -> None:
    run = shop_job.start(tmp_path)
    try:
        rows = run.rows("bought")
        next(rows)
        with pytest.raises(JobRuns, match="stop it first"):
            repair(str(tmp_path / "tree"), entries_lost=True, job_folder=tmp_path / "local")
    finally:
        run.cancel()


def test_a_generation_that_claims_the_job_meanwhile_ends_the_repair(stopped: Stopped) -> None:
    number, generation = stopped.tree.state.number, stopped.tree.state.generation
    WAYS["one in the middle"](Path(stopped.uri))
    before = everything(stopped.uri)
    claim = encode_entry(Entry(number + 1, fresh_nonce(), Claimed(Generation(generation + 1), "elsewhere")))

    def claims() -> None:
        LocalStore(Path(stopped.uri)).create(path_of(JournalEntry(number + 1)), claim)

    with at(fail_points.REPAIR_BEGUN, claims, fail_points.POINTS), pytest.raises(FencedOff):
        repair(stopped.uri)
    assert everything(stopped.uri) == {**before, path_of(JournalEntry(number + 1)): claim}


def test_a_driver_that_had_the_journal_open_writes_nothing_more(stopped: Stopped) -> None:
    tree = stopped.tree
    journal, writer = journal_of(tree.store), JournalWriter(tree.state)
    late = Removed(tree.state.generation, (tree.state.usable[0].epoch,), (), (tree.state.usable[0].manifest,))
    WAYS["one in the middle"](Path(stopped.uri))

    def writes() -> None:
        with pytest.raises(UnderRepair):
            journal.propose(JournalWriter(tree.state), fresh_nonce(), late)

    with at(fail_points.JOURNAL_MADE, writes, fail_points.POINTS):
        repair(stopped.uri)
    assert isinstance(propose(journal, writer, late), Fenced | Forgotten), "either ends a driver"
    assert sound(stopped)
