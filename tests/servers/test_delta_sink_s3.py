"""Delta tables in buckets of a real S3 server: the kit, while the server is down, and with wrong credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from deltalake import DeltaTable
from s3fs import S3FileSystem

from snapshot import ToDelta
from snapshot.connectors.delta.table import token_of
from snapshot.epochs.transaction_events import parse_transaction_id
from snapshot.ids import JobId
from snapshot.testing.sinks import CHECKS, SCHEMA, SinkEnvironment, SinkTrial
from statebackend.ids import Uid
from tests.servers.s3 import S3Server, running_s3_server
from tests.targets.servers import delta_options


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SinkTrial]:
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield trial_of(server)


def trial_of(server: S3Server) -> SinkTrial:
    uri, options = f"{server.make_bucket()}/deep/table", delta_options(server)
    sink = ToDelta(uri, roll_bytes=1, storage_options=options)
    objects = S3FileSystem(**server.options, skip_instance_cache=True, use_listings_cache=False)
    DeltaTable.create(uri, SCHEMA, storage_options=options)

    def visible(_: SinkEnvironment) -> Sequence[str]:
        rows: list[str] = DeltaTable(uri, storage_options=options).to_pyarrow_table()["row"].to_pylist()
        return rows

    def pending(job: JobId) -> int:
        added = {path.rpartition("/")[2] for path in DeltaTable(uri, storage_options=options).file_uris()}
        there = {str(path).rpartition("/")[2] for path in objects.ls(uri)}
        left = {token.transaction for token in map(token_of, there - added) if token is not None}
        return len([one for one in left if parse_transaction_id(one).job == job])

    @contextmanager
    def down() -> Iterator[None]:
        server.kill()
        yield
        server.start()

    wrong = replace(sink, storage_options={**options, "AWS_SECRET_ACCESS_KEY": "wrong"})
    bad = [wrong, replace(sink, uri="s3://no-such-bucket/table"), replace(sink, uri=f"{uri}/none")]
    return SinkTrial(sink, visible, lambda: None, down, pending, bad, [server.options["secret"]], [f"{uri}s"])


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], trial: SinkTrial) -> None:
    check(trial)


def test_a_server_that_is_down_is_said_in_one_line(trial: SinkTrial) -> None:
    assert trial.disturb is not None
    with trial.disturb():
        [problem] = trial.sink.examine(JobId("a job"), Uid("out"), SCHEMA)
    assert "Connection refused" in problem
    assert problem.isprintable()
