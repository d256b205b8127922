"""Real targets of sinks, by name: a job writes to them while its processes and the targets themselves are killed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.targets import embedded, postgres, servers
from tests.targets.target import Running

TARGETS: Final[Mapping[str, Running]] = {
    "files": embedded.files,
    "files-rolled": embedded.rolled_files,
    "delta": embedded.delta,
    "sqlite": embedded.sqlite,
    "rocksdb": embedded.rocksdb,
    "http": embedded.http,
    "kafka": servers.kafka,
    "pravega": servers.pravega,
    "s3": servers.s3,
    "delta-s3": servers.delta_on_s3,
    "hdfs": servers.hdfs,
    "postgres": postgres.prepared,
    "postgres-staged": postgres.staged,
    "postgres-upserts": postgres.upserts,
}
