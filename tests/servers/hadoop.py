"""What the servers of Hadoop have in common: their jars and their settings.

Invariant: a server of Hadoop finds nothing of the machine's own; its settings are files of a folder alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

_JARS: Final = Path(__file__).parents[2] / ".servers" / "hadoop"
_JAVA: Final = (
    "java",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # what answers over HTTP is older than Java 9
    "-Djava.net.preferIPv4Stack=true",
)
_LOG: Final = """\
log4j.rootLogger=WARN, out
log4j.logger.org.apache.hadoop.yarn.server.resourcemanager.ResourceTrackerService=INFO
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


def java(settings: Path) -> Sequence[str]:
    """What a command begins with whose next word is the class of a server with these settings."""
    if not _JARS.is_dir():
        raise FileNotFoundError(f"{_JARS} is not there; `make test-servers` fetches the jars of Hadoop")
    return [*_JAVA, "-cp", f"{settings}:{_JARS}/*"]


def write_settings(folder: Path, part: str, settings: Mapping[str, str]) -> None:
    """Of one part of Hadoop, such as `core`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    (folder / f"{part}-site.xml").write_text("\n".join(("<configuration>", *lines, "</configuration>")))
    (folder / "log4j.properties").write_text(_LOG)
