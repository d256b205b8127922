"""Targets that are servers, which a test starts itself, kills, and starts again at the same address.

Invariant: they are read with the client library of the target alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot import ToDelta, ToFiles, ToKafka, ToPravega
from tests.jobs.numbered import SCHEMA
from tests.servers.hdfs import running_hdfs
from tests.servers.kafka import running_kafka
from tests.servers.pravega import SCOPE, running_cluster
from tests.servers.s3 import S3Server, running_s3_server
from tests.targets.plain_files import PlainDelta, PlainFiles
from tests.targets.target import Target


@contextmanager
def kafka(folder: Path) -> Iterator[Target]:
    """A topic of three partitions, with JSON objects."""
    with running_kafka(folder) as server:
        topic = server.make_topic(3)

        def rows() -> pa.Table:
            return table([json.loads(record.value or b"null") for record in server.records(topic)])

        once = ToKafka(server.bootstrap, topic, key="k")
        yield Target(
            once, ToKafka(server.bootstrap, topic, key="k", exactly_once=False), rows, server.kill, server.start
        )


@contextmanager
def pravega(folder: Path) -> Iterator[Target]:
    """A stream of three segments, with JSON objects. The controller and the segment store die, BookKeeper lives on."""
    with running_cluster(folder) as cluster:
        stream = cluster.make_stream(3)

        def rows() -> pa.Table:
            return table([json.loads(event) for event in cluster.events(stream)])

        once = ToPravega(cluster.controller, SCOPE, stream, key="k")
        plain = ToPravega(cluster.controller, SCOPE, stream, key="k", exactly_once=False)
        yield Target(once, plain, rows, cluster.kill, cluster.start)


@contextmanager
def s3(folder: Path) -> Iterator[Target]:
    """Parquet files in a bucket."""
    from s3fs import S3FileSystem

    with running_s3_server(folder) as server:
        bucket = server.make_bucket()

        def rows() -> pa.Table:
            files = S3FileSystem(**server.options, skip_instance_cache=True, use_listings_cache=False)
            names = [name for name in files.ls(bucket) if "/part-" in name]
            return pa.concat_tables([SCHEMA.empty_table(), *(pq.read_table(name, filesystem=files) for name in names)])

        given = server.options
        environment = {
            "AWS_ENDPOINT_URL": given["endpoint_url"],
            "AWS_ACCESS_KEY_ID": given["key"],
            "AWS_SECRET_ACCESS_KEY": given["secret"],
        }
        yield Target(ToFiles(bucket), PlainFiles(bucket), rows, server.kill, server.start, environment)


@contextmanager
def delta_on_s3(folder: Path) -> Iterator[Target]:
    """A Delta table in a bucket."""
    from deltalake import DeltaTable

    with running_s3_server(folder) as server:
        uri, options = f"{server.make_bucket()}/table", delta_options(server)

        def rows() -> pa.Table:
            return DeltaTable(uri, storage_options=options).to_pyarrow_table().cast(SCHEMA)

        once, plain = ToDelta(uri, create=True, storage_options=options), PlainDelta(uri, options)
        yield Target(once, plain, rows, server.kill, server.start)


def delta_options(server: S3Server) -> dict[str, str]:
    """What deltalake needs to reach the server."""
    given = server.options
    return {
        "AWS_ENDPOINT_URL": given["endpoint_url"],
        "AWS_ACCESS_KEY_ID": given["key"],
        "AWS_SECRET_ACCESS_KEY": given["secret"],
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }


@contextmanager
def hdfs(folder: Path) -> Iterator[Target]:
    """Parquet files in HDFS."""
    with running_hdfs(folder) as server:
        uri = server.make_folder()

        def rows() -> pa.Table:
            files, root = server.files(), uri.partition(server.address)[2]
            names = [name for name in files.ls(root, detail=False) if "/part-" in name]
            tables = [pq.read_table(BytesIO(files.cat_file(name))) for name in names]
            return pa.concat_tables([SCHEMA.empty_table(), *tables])

        yield Target(ToFiles(uri), PlainFiles(uri), rows, server.kill, server.start)


def table(rows: Sequence[object]) -> pa.Table:
    """Rows that are objects of JSON."""
    return pa.Table.from_pylist(rows, schema=SCHEMA)
