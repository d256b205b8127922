"""All that one run tells other systems while it lasts, as its options ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from recovery.driver.report.status import RunStatus
from recovery.driver.settings.options import Options
from recovery.events import AnyEvent
from recovery.schemes.scheme import Scheme
from recovery.telemetry.page_data import Fixed, Node
from recovery.telemetry.problems import CannotTell
from recovery.telemetry.server import Endpoint, WebServer
from recovery.telemetry.watch import Watch
from snapshot.ids import JobId
from snapshot.program.explain import described
from snapshot.program.plan import Plan

if TYPE_CHECKING:
    from recovery.telemetry.collector import Collector

_UNTOLD = ("web_token", "storage_options", "tls")
"""Options whose values are nobody's business."""


class Telling:
    """Servers that listen and a collector that is known, from the making on; they tell of the run after `begin`."""

    def __init__(self, options: Options, job: JobId) -> None:
        """Listen where it is asked for; `CannotTell` if that cannot be, and then nothing is left."""
        self._options = options
        self._job = job
        self._open = ExitStack()
        self.metrics: WebServer | None = None
        self.page: WebServer | None = None
        with ExitStack() as made:
            if options.metrics:
                self.metrics = WebServer(Endpoint.of("metrics", options.metrics, options.web_token), "/metrics")
                made.callback(self.metrics.close)
            if options.page:
                self.page = WebServer(Endpoint.of("page", options.page, options.web_token), "/")
                made.callback(self.page.close)
            self._collector = _collector(options.traces, job) if options.traces else None
            if self._collector is not None:
                made.callback(self._collector.close)
            self._open = made.pop_all()

    def begin(
        self,
        plan: Plan,
        scheme: Scheme,
        configuration: Mapping[str, object],
        status: Callable[[], RunStatus],
        listen: Callable[[Callable[[AnyEvent], object]], object],
    ) -> None:
        """Tell of the run from now on: of the events that `listen` gives, and of its status."""
        if self.metrics is not None or self.page is not None:
            told = (*_told(configuration, {}), ("scheme", repr(scheme), True), *_told_options(self._options))
            watch = Watch(Fixed(self._job, _nodes(plan), tuple(told)), status)
            listen(watch.heard)
            if self.metrics is not None:
                self.metrics.begin({"/metrics": watch.routes["/metrics"]})
            if self.page is not None:
                self.page.begin(watch.routes)
        if self._collector is not None:
            listen(self._collector.traces.heard)

    def close(self) -> None:
        """End all of it; a collector is waited for, for two seconds."""
        self._open.close()


def _collector(address: str, job: JobId) -> Collector:
    try:
        from recovery.telemetry.collector import Collector  # loads what only an extra brings
    except ModuleNotFoundError as error:
        raise CannotTell(f"traces needs the module {error.name}: pip install 'epochcut[traces]'") from error
    return Collector(address, job)


def _nodes(plan: Plan) -> tuple[Node, ...]:
    found: list[Node] = []
    for stage in plan.stages:
        title, lines, inputs = described(stage)
        found.append(Node(stage.uid, title, tuple(lines), tuple(inputs)))
    return tuple(found)


def _told_options(options: Options) -> list[tuple[str, str, bool]]:
    """Return all options but the secret ones, those of epochs and of partitions among them."""
    usual, found = Options(), list[tuple[str, str, bool]]()
    for part, default in ((options, usual), (options.coordinator, usual.coordinator), (options.host, usual.host)):
        values = {one.name: getattr(part, one.name) for one in fields(part)}
        defaults = {one.name: getattr(default, one.name) for one in fields(default)}
        found += _told({name: value for name, value in values.items() if not is_dataclass(value)}, defaults)
    return found


def _told(values: Mapping[str, object], defaults: Mapping[str, object]) -> list[tuple[str, str, bool]]:
    return [
        (name, "(not shown)" if name in _UNTOLD and value else str(value), value != defaults.get(name))
        for name, value in values.items()
    ]
