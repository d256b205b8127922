"""The servers as fixtures. A server that is not built is an error, never a skip; a failed test shows its log."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .hdfs import HdfsServer, running_hdfs
from .kafka import KafkaServer, running_kafka
from .postgres import PostgresServer, running_postgres
from .pravega import PravegaServer, running_pravega
from .s3 import S3Server, running_s3_server
from .yarn import Yarn


def pytest_itemcollected(item: pytest.Item) -> None:
    """Every test of this folder is one against servers."""
    item.add_marker(pytest.mark.servers)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests that do not harm it; each takes its own bucket."""
    with running_s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def mortal_s3_server(tmp_path: Path) -> Iterator[S3Server]:
    """A server of the test's own, which it may kill and start again."""
    with running_s3_server(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """One HDFS for all tests that do not harm it; each makes its own folder."""
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture
def mortal_hdfs_server(tmp_path: Path) -> Iterator[HdfsServer]:
    """An HDFS of the test's own, which it may kill and start again."""
    with running_hdfs(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One broker for all tests that do not harm it; each makes its own topics."""
    with running_kafka(tmp_path_factory.mktemp("kafka")) as server:
        yield server


@pytest.fixture
def mortal_kafka_server(tmp_path: Path) -> Iterator[KafkaServer]:
    """A broker of the test's own, which it may kill and start again."""
    with running_kafka(tmp_path) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """A broker that wants a password, which is among its `client_settings`; no test harms it."""
    login = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b" user_a="b";'
    settings = {
        "listener.security.protocol.map": "BROKER:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.broker.plain.sasl.jaas.config": login,
    }
    server = KafkaServer(tmp_path_factory.mktemp("guarded"), settings)
    server.client_settings.update(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    )
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests that do not harm it; each takes its own database."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def mortal_postgres_server() -> Iterator[PostgresServer]:
    """A server of the test's own, which it may kill and start again."""
    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def pravega_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PravegaServer]:
    """One Pravega for all tests that do not harm it; each makes its own streams."""
    with running_pravega(tmp_path_factory.mktemp("pravega")) as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, S3Server):
                report.sections.append(("S3 server log, last lines", value.end_of_log()))
            if isinstance(value, HdfsServer):
                report.sections.append(("HDFS logs, last lines", value.end_of_log()))
            if isinstance(value, KafkaServer):
                report.sections.append(("Kafka broker log, last lines", value.end_of_log()))
            if isinstance(value, PostgresServer):
                report.sections.append(("PostgreSQL log, last lines", value.end_of_log()))
            if isinstance(value, PravegaServer):
                report.sections.append(("Pravega log, last lines", value.end_of_log()))
            if isinstance(value, Yarn):
                report.sections.append(("YARN logs, last lines", value.end_of_logs()))
    return report
