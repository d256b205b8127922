"""Keys of a running job are read as they are now, through the process that has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import recovery
import recovery.driver.tree.address
from recovery.attached import Attached
from recovery.offline.job_tree import open_tree
from tests.command_line import run_command
from tests.shop_job import BEFORE, PATIENCE, baskets, start, totals


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a job that has taken all sales up to an end that it does not get past."""
    folder = tmp_path_factory.mktemp("job")
    run = start(folder)
    rows, sums = run.rows("bought"), run.rows("sums")
    for _ in range(BEFORE):
        next(rows), next(sums)
    drained = [threading.Thread(target=list, args=(some,)) for some in (rows, sums)]
    for thread in drained:
        thread.start()
    yield folder
    run.cancel()
    for thread in drained:
        thread.join(PATIENCE)


@pytest.fixture
def attached(job: Path) -> Iterator[Attached]:
    with recovery.attach(job_folder=job / "local") as attached:
        yield attached


def test_each_key_is_read_from_the_partition_that_has_it(attached: Attached) -> None:
    partitions = set()
    for (region, user), basket in list(baskets().items())[:12]:
        found = attached.read("baskets", f'["{region}", {user}]')
        partitions.add(found.partition)
        assert found.tables["cents"].column("value").to_pylist() == [basket["cents"]]
        assert found.tables["sales"].column("value").to_pylist() == basket["sales"]
        kept = found.tables["items"]
        assert dict(zip(kept["map_key"].to_pylist(), kept["value"].to_pylist(), strict=True)) == basket["items"]
    assert partitions == {0, 1}


def test_a_table_of_aggregates_is_read_as_well(attached: Attached) -> None:
    for item, cents in totals().items():
        [table] = attached.read("totals", item).tables.values()
        [row] = table.to_pylist()
        assert cents in row.values(), row


def test_a_key_that_is_not_there_has_no_rows(attached: Attached) -> None:
    found = attached.read("baskets", '["mars", 1]', "cents")
    assert [table.num_rows for table in found.tables.values()] == [0]


@pytest.mark.parametrize(
    ("uid", "key", "state", "said"),
    [
        ("basket", "a", None, "there is no operator 'basket' with keyed state; there are: baskets, totals"),
        ("baskets", "eu", None, "the key is of type"),
        ("baskets", '["eu", 1]', "cent", "there is no such state"),
    ],
)
def test_what_cannot_be_read_is_declined_and_the_job_goes_on(
    uid: str, key: str, state: str | None, said: str, attached: Attached
) -> None:
    with pytest.raises(recovery.CommandDeclined, match=said):
        attached.read(uid, key, state)
    assert attached.status().state is recovery.RunState.RUNNING


def test_the_command_marks_what_is_live(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    birth = open_tree(str(job / "tree")).birth
    home = recovery.driver.tree.address.home_of(birth.job)
    home.parent.mkdir(0o700, exist_ok=True)
    home.symlink_to(job / "local")
    try:
        arguments = ["inspect", "--checkpoints", str(job / "tree"), "--uid", "totals", "--live", "--key", "tea"]
        printed = run_command(capsys, *arguments)
        assert printed.code == 0
        assert str(totals()["tea"]) in printed.out
        assert "no epoch has this yet, and a roll-back would undo it" in printed.out
        assert run_command(capsys, *arguments, "--json").lines[-1]["live"] is True
        assert run_command(capsys, *arguments, "--epoch", "1").code == 2
    finally:
        home.unlink()
