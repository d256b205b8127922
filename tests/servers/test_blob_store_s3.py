"""A real S3 server keeps what the journal needs, and dies without anybody taking a create for done that is not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier

import pytest

from statebackend.stores.fsspec_store import open_store
from statebackend.stores.store import BlobNotFound, BlobStore, Creation, StoreUnavailable, UnknownOutcome
from statebackend.testing.blob_race import race_for_one_name
from statebackend.testing.blob_store import CHECKS, OpenStore

from .s3 import S3Server


@pytest.fixture
def open_s3(s3_server: S3Server) -> OpenStore:
    return partial(open_store, f"{s3_server.make_bucket()}/deep/root", **s3_server.options)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_real_s3_server_keeps_the_promise(check: Callable[[OpenStore], None], open_s3: OpenStore) -> None:
    check(open_s3)


def test_the_root_of_a_store_may_be_a_bucket(s3_server: S3Server) -> None:
    store = open_store(s3_server.make_bucket(), **s3_server.options)
    store.write("a/b", b"x")
    assert [info.path for info in store.list()] == ["a/b"]


@pytest.mark.timeout(600)
def test_of_32_processes_that_race_exactly_one_wins_each_round(
    s3_server: S3Server, open_s3: OpenStore, search_factor: int
) -> None:
    """In a hundred rounds; the thorough profile runs two hundred, as the test of a disk always does."""
    rounds = 100 if search_factor == 1 else 200
    report = race_for_one_name(open_s3, processes=32, rounds=rounds)
    assert sum(report.wins) == report.rounds == rounds
    assert sum(wins > 0 for wins in report.wins) > 16, "a race in which few can win is none"


def test_no_create_is_taken_for_done_when_the_server_is_killed(mortal_s3_server: S3Server) -> None:
    uri, writers = mortal_s3_server.make_bucket(), 8
    stores = [open_store(uri, **mortal_s3_server.options) for _ in range(writers)]
    halfway = Barrier(writers + 1)
    with ThreadPoolExecutor(writers) as threads:
        running = [
            threads.submit(_create_until_it_fails, store, f"journal/{writer}", halfway)
            for writer, store in enumerate(stores)
        ]
        halfway.wait(60)
        mortal_s3_server.kill()
        made = [path for creating in running for path in creating.result(60)]
    assert len(made) >= 10 * writers
    with pytest.raises(StoreUnavailable, match="Could not connect"):
        open_store(uri, **mortal_s3_server.options)
    mortal_s3_server.start()
    store = open_store(uri, **mortal_s3_server.options)
    listed = {info.path for info in store.list("journal")}
    assert set(made) <= listed
    for path in listed:
        assert store.read(path) == path.encode()
        assert store.create(path, b"another's") is Creation.EXISTED


def _create_until_it_fails(store: BlobStore, folder: str, halfway: Barrier) -> list[str]:
    """What was reported as created. Each fails by its own next create, so that the outcome of that one is unknown."""
    made: list[str] = []
    while True:
        path = f"{folder}/{len(made):06}"
        if len(made) == 10:
            halfway.wait(60)
        try:
            assert store.create(path, path.encode()) is Creation.CREATED
        except UnknownOutcome:
            return made
        made.append(path)


def test_a_bucket_that_is_not_there_is_told_when_the_store_is_opened(s3_server: S3Server) -> None:
    with pytest.raises(StoreUnavailable, match="bucket does not exist"):
        open_store("s3://never-made/root", **s3_server.options)


def test_wrong_credentials_are_told_when_the_store_is_opened(s3_server: S3Server) -> None:
    uri = s3_server.make_bucket()
    with pytest.raises(StoreUnavailable, match="signature"):
        open_store(uri, **{**s3_server.options, "secret": "wrong"})


def test_a_lost_bucket_is_not_taken_for_a_lost_blob(s3_server: S3Server) -> None:
    from s3fs import S3FileSystem

    uri = s3_server.make_bucket()
    store = open_store(uri, **s3_server.options)
    with pytest.raises(BlobNotFound):
        store.read("a")
    S3FileSystem(**s3_server.options, skip_instance_cache=True).rmdir(uri.removeprefix("s3://"))
    with pytest.raises(StoreUnavailable, match="bucket"):
        store.read("a")
