"""Files in buckets of a real S3 server: uploads that are completed at commit, whatever happens to it or to us."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from shutil import copytree

import pyarrow.parquet as pq
import pytest
from fsspec.config import conf
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from s3fs import S3FileSystem

from snapshot import ToFiles
from snapshot.connectors.files import s3_folder
from snapshot.connectors.files.names import transaction_of
from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import JobId
from snapshot.testing.sink_machine import sink_machine
from snapshot.testing.sinks import CHECKS, DONE, SCHEMA, SinkBench, SinkEnvironment, SinkTrial, some, write
from tests.servers.postgres_proxy import Proxy, running_proxy
from tests.servers.s3 import S3Server
from tests.target_kills import carry_out
from tests.targets import TARGETS
from tests.test_file_sink import trial as listed_trial
from tests.test_partitioned_files import trial as partitioned_trial


class Bucket:
    """A bucket that nobody else uses, as its owner sees it: past the sink, past what is between the sink and it."""

    def __init__(self, server: S3Server) -> None:
        self.files = S3FileSystem(**server.options, skip_instance_cache=True, use_listings_cache=False)
        self.uri = server.make_bucket()
        self.name = self.uri.removeprefix("s3://")

    def objects(self) -> Sequence[str]:
        return [str(path) for path in self.files.find(self.name)]

    def rows(self) -> Sequence[str]:
        """The rows of all objects."""
        tables = [pq.read_table(BytesIO(self.files.cat_file(path))) for path in self.objects()]
        return [row for table in tables for row in table.column("row").to_pylist()]

    def uploads(self) -> Sequence[tuple[str, str]]:
        """Those that are not completed: keys and ids."""
        found = self.files.call_s3("list_multipart_uploads", Bucket=self.name).get("Uploads", ())
        return [(upload["Key"], upload["UploadId"]) for upload in found]

    def abort_uploads(self) -> None:
        for key, upload in self.uploads():
            self.files.call_s3("abort_multipart_upload", Bucket=self.name, Key=key, UploadId=upload)

    def pending(self, job: JobId) -> int:
        names = {transaction_of(key.rpartition("/")[2]) for key, _ in self.uploads()}
        return sum(name is not None and name.startswith(f"{job}/") for name in names)

    def clear(self) -> None:
        self.abort_uploads()
        for path in self.objects():
            self.files.rm_file(path)


@contextmanager
def storage_options(**options: object) -> Iterator[None]:
    """What processes of a job are given as `storage_options={'s3': ...}`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(conf, "s3", options)
        yield


@dataclass(frozen=True, slots=True)
class Wired:
    """A bucket, the wire to it, and the trial of a sink that writes to it through the wire."""

    bucket: Bucket
    wire: Proxy
    trial: SinkTrial


@contextmanager
def wired(server: S3Server, roll_bytes: int = 64 << 20) -> Iterator[Wired]:
    bucket = Bucket(server)

    def visible(_: SinkEnvironment) -> Sequence[str]:
        return bucket.rows()

    with running_proxy(int(server.endpoint.rpartition(":")[2])) as wire:
        sink = ToFiles(f"{bucket.uri}/deep/folder", roll_bytes=roll_bytes)
        bad = [ToFiles("s3://no-such-bucket-was-made/x")]
        secrets = [server.options["secret"]]
        with storage_options(**{**server.options, "endpoint_url": f"http://127.0.0.1:{wire.port}"}):
            trial = SinkTrial(sink, visible, bucket.clear, wire.cut, bucket.pending, bad, secrets)
            yield Wired(bucket, wire, replace(trial, elsewhere=[f"{bucket.uri}/others", "s3://others/deep/folder"]))


@pytest.fixture(scope="module")
def steady(s3_server: S3Server) -> Iterator[Wired]:
    with wired(s3_server) as found:
        yield found


@pytest.fixture(scope="module")
def rolling(s3_server: S3Server) -> Iterator[Wired]:
    with wired(s3_server, roll_bytes=1) as found:
        yield found


@pytest.mark.parametrize("check", CHECKS)
def test_it_passes_the_kit(check: Callable[[SinkTrial], None], rolling: Wired) -> None:
    check(rolling.trial)


def test_it_passes_any_order_of_events(rolling: Wired) -> None:
    chosen = settings(max_examples=4, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(sink_machine(rolling.trial), settings=chosen)


def test_files_in_folders_on_s3_pass_the_kit(s3_server: S3Server) -> None:
    bucket = Bucket(s3_server)
    with storage_options(**s3_server.options):
        for check in CHECKS:
            check(partitioned_trial(f"{bucket.uri}/deep/folder"))
            bucket.clear()


def test_files_for_which_rows_wait_pass_any_order_of_events_on_s3(s3_server: S3Server) -> None:
    chosen = settings(max_examples=4, stateful_step_count=20, deadline=None)
    with storage_options(**s3_server.options):
        trial = listed_trial(f"{s3_server.make_bucket()}/folder", "jsonl", 1200, roll_every="1d")
        run_state_machine_as_test(sink_machine(trial), settings=chosen)


def test_a_list_of_committed_files_on_s3_passes_the_kit(s3_server: S3Server) -> None:
    with storage_options(**s3_server.options):
        trial = listed_trial(f"{s3_server.make_bucket()}/folder", roll_bytes=1, listed=True)
        for check in CHECKS:
            check(trial)
            trial.clear()


@pytest.mark.parametrize(
    ("wrong", "advice"),
    [
        ({"secret": "another"}, "the secret is not the key's; give storage_options="),
        ({"key": "nobody"}, "No user exists with the provided access key"),
        ({"endpoint_url": "http://127.0.0.1:1"}, "S3 does not answer"),
    ],
)
def test_what_is_wrong_with_the_options_of_storage_is_said_before_anything_starts(
    wrong: dict[str, str], advice: str, s3_server: S3Server
) -> None:
    bench = SinkBench(SinkTrial(ToFiles(s3_server.make_bucket()), lambda _: ()))
    with storage_options(**{**s3_server.options, **wrong}):
        [problem] = bench.sink().examine(bench.job, bench.uid, SCHEMA)
    assert advice in problem
    assert s3_server.options["secret"] not in problem


def test_a_bucket_that_is_not_there_is_said_before_anything_starts(s3_server: S3Server) -> None:
    bench = SinkBench(SinkTrial(ToFiles("s3://no-such-bucket-was-made/x"), lambda _: ()))
    with storage_options(**s3_server.options):
        [problem] = bench.sink().examine(bench.job, bench.uid, SCHEMA)
    assert "there is no such bucket; make it" in problem


def test_a_bucket_that_is_lost_for_a_while_loses_no_commit(s3_server: S3Server, steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    transaction, payload, rows = bench.prepared()
    place = s3_server.objects / steady.bucket.name
    away = place.rename(place.with_name("put-away"))
    answer = bench.writer().commit(transaction, payload)
    away.rename(place)
    assert answer.outcome is CommitOutcome.RETRY_LATER
    assert "bucket does not exist" in answer.reason
    bench.settle(transaction, payload)
    bench.expect(rows, "the next try commits")


def test_a_completion_whose_answer_is_lost_is_found_out_and_not_repeated(steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    transaction, payload, rows = bench.prepared()
    steady.wire.lose_the_answer_to(b"<CompleteMultipartUpload")
    assert bench.settle(transaction, payload).outcome in DONE
    assert steady.wire.lost == 1
    bench.expect(rows, "the file is there once")
    assert bench.settle(transaction, payload).outcome in DONE
    bench.expect(rows, "the file is there once")


def test_a_server_that_has_made_the_file_and_knows_an_upload_without_parts_is_not_asked_for_ever(
    steady: Wired, s3_server: S3Server, tmp_path: Path
) -> None:
    bench = SinkBench(steady.trial)
    transaction, payload, rows = bench.prepared()
    [upload] = (s3_server.objects / steady.bucket.name).glob(".sgwtmp/multipart/*/*")
    kept = Path(copytree(upload, tmp_path / "kept"))
    bench.settle(transaction, payload)
    (kept / "1").unlink()
    copytree(kept, upload)
    assert bench.settle(transaction, payload).outcome in DONE
    bench.expect(rows, "the file is there once")


def test_an_upload_that_nobody_heard_of_is_aborted_by_recovery(steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    writer, transaction, rows = bench.writer(), bench.name(), bench.rows(2)
    writer.begin(transaction)
    write(writer, rows)
    before = steady.wire.lost
    steady.wire.lose_the_answer_to(b"?uploads")
    payload = some(writer.seal().prepare(), transaction)
    assert steady.wire.lost == before + 1
    assert len(steady.bucket.uploads()) == 2, "one of which is known"
    bench.recover(2, [transaction])
    bench.settle(transaction, payload, 2)
    bench.recover(3)
    bench.expect(rows, "the file is there once")
    bench.expect_pending(0, "no upload is left")


def test_a_commit_whose_upload_was_aborted_fails_with_a_reason(steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    transaction, payload, _ = bench.prepared()
    steady.bucket.abort_uploads()
    answer = bench.writer().commit(transaction, payload)
    assert answer.outcome is CommitOutcome.FAILED
    assert "neither staged nor visible" in answer.reason
    assert transaction in answer.reason


def test_a_file_of_that_name_that_another_upload_has_made_is_not_taken_for_a_commit(steady: Wired) -> None:
    bench = SinkBench(steady.trial)
    transaction, payload, _ = bench.prepared()
    [(key, _)] = steady.bucket.uploads()
    steady.bucket.abort_uploads()
    path = f"{steady.bucket.name}/{key}"
    steady.bucket.files.pipe_file(path, b"another's", Metadata={"epochcut-upload": "another's"})
    answer = bench.writer().commit(transaction, payload)
    steady.bucket.clear()
    assert answer.outcome not in DONE


def test_a_large_file_goes_up_in_parts(steady: Wired, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_folder, "_PART", 5 << 20)
    bench = SinkBench(steady.trial)
    writer, transaction = bench.writer(), bench.name()
    rows = [f"{bench.job}: {token_hex(2 << 20)}", f"{bench.job}: {token_hex(2 << 20)}"]
    writer.begin(transaction)
    write(writer, rows)
    payload = some(writer.seal().prepare(), transaction)
    assert payload.value.text.count('"PartNumber"') == 2
    bench.settle(transaction, payload)
    assert sorted(bench.visible()) == sorted(rows), "all parts are there"
    steady.bucket.clear()


def test_a_server_that_dies_while_rows_are_written_costs_none_when_it_is_back(mortal_s3_server: S3Server) -> None:
    with wired(mortal_s3_server, roll_bytes=1) as found:
        bench = SinkBench(found.trial)
        writer, transaction, rows = bench.writer(), bench.name(), bench.rows(3)
        writer.begin(transaction)
        write(writer, rows[:1])
        mortal_s3_server.kill()
        write(writer, rows[1:2])
        sealed = writer.seal()
        with pytest.raises(Exception, match="onnect"):
            sealed.prepare()
        mortal_s3_server.start()
        payload = some(sealed.prepare(), transaction)
        bench.expect([], "nothing is visible before the commit")
        bench.settle(transaction, payload)
        bench.expect(rows[:2], "each row is there once")


def test_a_server_that_dies_before_a_commit_completes_it_when_it_is_back(mortal_s3_server: S3Server) -> None:
    with wired(mortal_s3_server, roll_bytes=1) as found:
        bench = SinkBench(found.trial)
        (one, first, rows), (other, second, others) = bench.prepared(), bench.prepared()
        bench.settle(one, first)
        mortal_s3_server.kill()
        for transaction, payload in ((one, first), (other, second)):
            answer = bench.writer().commit(transaction, payload)
            assert answer.outcome is CommitOutcome.RETRY_LATER
            assert "could not be made visible now" in answer.reason
        mortal_s3_server.start()
        bench.recover(2, [one, other])
        assert bench.settle(one, first, 2).outcome in DONE
        assert bench.settle(other, second, 2).outcome is CommitOutcome.COMMITTED
        bench.expect(rows + others, "each row is there once")
        bench.expect_pending(0, "no upload is left")


@pytest.mark.timeout(600)
def test_a_job_whose_workers_are_killed_leaves_each_row_once(tmp_path: Path) -> None:
    """The server is killed by `make test-sinks`: if it dies while it completes an upload, it may lose that for good."""
    report = carry_out("s3", TARGETS["s3"], tmp_path / "trial", kills=2, restarts=0, seed=5)
    assert report.workers + report.drivers == 2
    assert report.reads > 0
    assert report.exact, (report.compared.examples, report.seen)
