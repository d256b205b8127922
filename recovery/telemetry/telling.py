"""All that one run tells other systems while it lasts, as its options ask for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from recovery.driver.report.status import RunStatus
from recovery.driver.settings.options import Options
from recovery.events import AnyEvent, Described
from recovery.telemetry.problems import CannotTell
from recovery.telemetry.server import Endpoint, WebServer
from recovery.telemetry.watch import Watch
from snapshot.ids import JobId

if TYPE_CHECKING:
    from recovery.telemetry.collector import Collector


class Telling:
    """Servers that listen and a collector that is known, from the making on; they tell of the run after `begin`."""

    def __init__(self, options: Options, job: JobId) -> None:
        """Listen where it is asked for; `CannotTell` if that cannot be, and then nothing is left."""
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
        described: Described,
        tree: str,
        status: Callable[[], RunStatus],
        listen: Callable[[Callable[[AnyEvent], object]], object],
    ) -> None:
        """Tell of the run from now on: of the events that `listen` gives, of its status, and of the tree there."""
        if self.metrics is not None or self.page is not None:
            watch = Watch(self._job)
            watch.heard(described)
            listen(watch.heard)
            routes = watch.routes(status, tree)
            if self.metrics is not None:
                self.metrics.begin({"/metrics": routes["/metrics"]})
            if self.page is not None:
                self.page.begin(routes)
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
