"""The journal on a real S3 server: drivers race for generations, and one that was paused can change nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from snapshot.journal.store import StoredJournal
from statebackend.stores.fsspec_store import open_store
from statebackend.testing.blob_store import OpenStore
from tests.journal_drivers import Point, check_race, check_that_a_paused_driver_changes_nothing, race_of_processes

from .s3 import S3Server


@pytest.fixture
def open_s3(s3_server: S3Server) -> OpenStore:
    return partial(open_store, f"{s3_server.make_bucket()}/job", **s3_server.options)


def test_of_32_processes_that_claim_on_s3_each_gets_a_generation_of_its_own_and_knows_it(open_s3: OpenStore) -> None:
    check_race(race_of_processes(open_s3, 32), StoredJournal(open_s3()).read())


@pytest.mark.parametrize("compacted", [True, False], ids=["number free again", "number taken"])
@pytest.mark.parametrize("point", Point, ids=lambda point: point.name.lower())
def test_a_driver_that_comes_back_after_another_has_claimed_publishes_and_commits_nothing_on_s3(
    open_s3: OpenStore, tmp_path: Path, point: Point, compacted: bool
) -> None:
    check_that_a_paused_driver_changes_nothing(open_s3, tmp_path / "target.db", point, compacted=compacted)
