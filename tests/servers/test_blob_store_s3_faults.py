"""Whatever a faulty S3 server or the network does to a create, it is never reported as something that it was not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from statebackend.stores.fsspec_store import open_store
from statebackend.stores.store import BlobStore, Creation, StoreUnavailable, UnknownOutcome, UnsuitableStore

from .faulty_s3 import NONCE, FaultyS3, Reply, Request, running_faulty_s3


@pytest.fixture
def s3() -> Iterator[FaultyS3]:
    with running_faulty_s3() as server:
        yield server


@pytest.fixture
def store(s3: FaultyS3) -> BlobStore:
    opened = _open(s3)
    s3.seen.clear()
    return opened


def _open(s3: FaultyS3) -> BlobStore:
    options = {"key": "key", "secret": "secret", "endpoint_url": s3.endpoint}
    return open_store("s3://bucket/root", **options, config_kwargs={"read_timeout": 0.5})


def _spoil_creates(s3: FaultyS3, *answers: Callable[[Request], Reply | None]) -> None:
    """Answer the first conditional puts so, and everything else as S3 does."""
    left = list(answers)
    s3.spoil = lambda request: left.pop(0)(request) if left and request.is_create else s3.serve(request)


def test_a_faultless_server_is_taken(s3: FaultyS3, store: BlobStore) -> None:
    assert store.create("a", b"first") is Creation.CREATED
    assert store.create("a", b"second") is Creation.EXISTED
    assert store.read("a") == b"first"
    assert list(s3.objects) == ["/bucket/root/a"], "the trial is cleaned up"


def test_a_server_that_ignores_the_condition_is_refused(s3: FaultyS3) -> None:
    s3.spoil = s3.serve_without_conditions
    with pytest.raises(UnsuitableStore, match="ignores the condition If-None-Match; use a server that keeps it"):
        _open(s3)
    assert not s3.objects, "the trial is cleaned up"


def test_a_server_that_does_not_know_the_condition_is_refused(s3: FaultyS3) -> None:
    _spoil_creates(s3, lambda request: Reply(501, "NotImplemented"))
    with pytest.raises(UnsuitableStore, match="does not know conditional puts"):
        _open(s3)


def test_an_own_success_that_something_on_the_way_repeats_is_recognised(s3: FaultyS3, store: BlobStore) -> None:
    def forward_twice(request: Request) -> Reply:
        s3.serve(request)
        return s3.serve(request)

    _spoil_creates(s3, forward_twice)
    assert store.create("a", b"mine") is Creation.CREATED


def test_an_own_success_whose_answer_was_lost_is_never_taken_for_anothers(s3: FaultyS3, store: BlobStore) -> None:
    def serve_and_hang_up(request: Request) -> None:
        s3.serve(request)

    _spoil_creates(s3, serve_and_hang_up)
    try:
        answer = store.create("a", b"mine")
    except UnknownOutcome:
        return
    assert s3.creates == 2, "the client has sent it again"
    assert answer is Creation.CREATED


def test_anothers_success_is_told_after_a_lost_connection(s3: FaultyS3, store: BlobStore) -> None:
    def let_another_in_and_hang_up(request: Request) -> None:
        s3.objects[request.path] = (b"another's", "another")

    _spoil_creates(s3, let_another_in_and_hang_up, s3.serve)
    assert store.create("a", b"mine") is Creation.EXISTED
    assert store.read("a") == b"another's"


def test_a_connection_that_breaks_each_time_leaves_the_outcome_unknown(s3: FaultyS3, store: BlobStore) -> None:
    _spoil_creates(s3, *[lambda request: None] * 9)
    with pytest.raises(UnknownOutcome, match=r"whether a was created in .*s3://bucket/root.* is unknown"):
        store.create("a", b"mine")
    assert s3.creates <= 2, "it is not sent again and again"


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_error_leaves_the_outcome_unknown_and_is_not_retried(
    s3: FaultyS3, store: BlobStore, status: int
) -> None:
    def serve_and_fail(request: Request) -> Reply:
        s3.serve(request)
        return Reply(status, "SlowDown")

    _spoil_creates(s3, serve_and_fail)
    with pytest.raises(UnknownOutcome):
        store.create("a", b"mine")
    assert s3.creates == 1
    assert store.create("a", b"mine") is Creation.EXISTED


def test_an_answer_that_does_not_come_leaves_the_outcome_unknown(s3: FaultyS3, store: BlobStore) -> None:
    asked_no_more = threading.Event()

    def keep_waiting(request: Request) -> None:
        asked_no_more.wait(30)

    _spoil_creates(s3, keep_waiting, keep_waiting)
    try:
        with pytest.raises(UnknownOutcome, match="timeout"):
            store.create("a", b"mine")
    finally:
        asked_no_more.set()


def test_a_conflict_inside_the_server_is_asked_again(s3: FaultyS3, store: BlobStore) -> None:
    def conflict(request: Request) -> Reply:
        return Reply(409, "ConditionalRequestConflict")

    _spoil_creates(s3, conflict, conflict)
    assert store.create("a", b"mine") is Creation.CREATED
    assert s3.creates == 3
    _spoil_creates(s3, conflict)
    assert store.create("a", b"again") is Creation.EXISTED


def test_a_conflict_without_end_leaves_the_outcome_unknown(
    s3: FaultyS3, store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("statebackend.stores.s3_store._CONFLICT_PAUSES", (0.0, 0.0))
    _spoil_creates(s3, *[lambda request: Reply(409, "ConditionalRequestConflict")] * 9)
    with pytest.raises(UnknownOutcome, match="is unknown"):
        store.create("a", b"mine")
    assert s3.creates == 3


def test_an_entry_that_vanishes_before_its_creator_is_known_leaves_the_outcome_unknown(
    s3: FaultyS3, store: BlobStore
) -> None:
    _spoil_creates(s3, lambda request: Reply(412, "PreconditionFailed"))
    with pytest.raises(UnknownOutcome, match="by this very call"):
        store.create("a", b"mine")


def test_each_create_signs_its_object_anew(s3: FaultyS3, store: BlobStore) -> None:
    for _ in range(2):
        store.create("a", b"x")
    nonces = {request.headers[NONCE] for request in s3.seen if request.is_create}
    assert len(nonces) == 2
    assert all(nonces)


def test_a_server_that_fails_from_the_start_cannot_be_opened(s3: FaultyS3) -> None:
    _spoil_creates(s3, lambda request: Reply(500, "InternalError"))
    with pytest.raises(StoreUnavailable, match="could not open"):
        _open(s3)
