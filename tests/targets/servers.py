"""Targets that are servers, which a test starts itself, kills, and starts again at the same address.

What always holds: they are read with the client library of the target alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from snapshot import ToFiles, ToKafka
from tests.jobs.numbered import SCHEMA
from tests.servers.kafka import running_kafka
from tests.servers.s3 import running_s3_server
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
        yield Target(ToFiles(bucket), None, rows, server.kill, server.start, environment)


def table(rows: Sequence[object]) -> pa.Table:
    """Rows that are objects of JSON."""
    return pa.Table.from_pylist(rows, schema=SCHEMA)
