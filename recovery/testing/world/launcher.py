"""A launcher for simulated processes: each runs a real `Worker`, and is started again by the real rules of launches.

Invariant: what `Launcher` says; a process that the driver's process has started lives on when that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from recovery.driver.launchers.launch import CannotLaunch
from recovery.driver.launchers.launch_rules import Launch
from recovery.driver.launchers.supervisor import Keeper
from recovery.testing.world.kernel import SimProcess, World
from snapshot.host.net.tls import Tls
from snapshot.host.process.worker import DRIVER_LOST, DriverLost, Worker
from snapshot.host.protocol.messages import Address
from statebackend import means

_AGAIN = 0.5
"""Seconds in which a launch would bring another process by itself; none does here."""
_STARTS = 0.02
"""Seconds that a process needs until it runs."""


class Place(NamedTuple):
    """The name of a process, and the address of its machine."""

    name: str
    host: str


class SimLauncher:
    """Starts processes of the simulated world at these places, by their slots; to be made in the driver's process."""

    def __init__(
        self,
        world: World,
        host: str,
        places: Sequence[Place],
        on_started: Callable[[SimProcess], object] = lambda _: None,
        on_ended: Callable[[SimProcess, int], object] = lambda *_: None,
    ) -> None:
        self.host = host
        self.local: str | None = None
        self._world = world
        self._places = places
        self._on_started = on_started
        self._on_ended = on_ended
        self._driver = Address(host, 0)
        self._secret = b""
        self._running: dict[int, SimProcess] = {}
        self._codes: dict[int, int] = {}
        self._ended: means.SimpleQueue[tuple[Launch, int] | None] = means.SimpleQueue()
        self._keeper: Keeper | None = None

    def check(self, processes: int) -> Sequence[str]:  # noqa: ARG002  # as the contract has it
        """Find nothing wrong. See `Launcher.check`."""
        return ()

    def start(
        self,
        driver: Address,
        secret: bytes,
        processes: int,
        trouble: Callable[[str | CannotLaunch], object],
        tls: Tls | None = None,  # noqa: ARG002  # as the contract has it
    ) -> None:
        """Start them. See `Launcher.start`."""
        self._driver, self._secret = driver, secret
        self._keeper = Keeper(self, processes, _AGAIN, trouble, "process")
        means.Thread(target=self._watch, name="ends of processes", daemon=True).start()
        self._keeper.begin()

    def appeared(self, launch: int, worker: str) -> bool:
        """Count a process that says hello. See `Launcher.appeared`."""
        return self._the_keeper.appeared(launch, worker)

    def lost(self, worker: str, *, silent: bool) -> None:
        """Start another process for one that is lost. See `Launcher.lost`."""
        self._the_keeper.lost(worker, silent=silent)

    def release(self) -> None:
        """Start no process again. See `Launcher.release`."""
        if self._keeper is not None:
            self._keeper.release()

    def stop(self, seconds: float) -> None:
        """Wait for the processes to end, and end those that have not. See `Launcher.stop`."""
        until = means.monotonic() + seconds
        while any(process.alive for process in self._running.values()) and means.monotonic() < until:
            means.sleep(0.01)
        for process in self._running.values():
            self._world.end(process)
        if self._keeper is not None:
            self._keeper.join()

    def exit_code(self, launch: int) -> int | None:
        """Return how a process has ended. See `TellsExitCodes`."""
        return self._codes.get(launch)

    # --- what the keeper asks for -------------------------------------------------------------------------------------

    def launch(self, launch: Launch) -> None:
        """Begin this launch."""
        driver, secret = self._driver, self._secret

        def main() -> int:
            means.sleep(_STARTS)
            try:
                Worker(driver, secret, launch.slot, launch.number).run()
            except DriverLost:
                return DRIVER_LOST
            return 0

        def ended(code: int) -> None:
            self._on_ended(process, code)
            self._ended.put((launch, code))

        name, host = self._places[launch.slot]
        process = self._running[launch.number] = self._world.start(name, host, main, ended)
        self._on_started(process)

    def cancel(self, number: int) -> None:
        """End the launch."""
        self._world.end(self._running[number])

    def _watch(self) -> None:
        while (ended := self._ended.get()) is not None:
            launch, code = ended
            self._codes[launch.number] = code
            self._the_keeper.ended(launch, f"ended with {code}, and is started again")

    @property
    def _the_keeper(self) -> Keeper:
        assert self._keeper is not None, "the launcher is not started"
        return self._keeper
