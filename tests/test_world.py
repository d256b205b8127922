"""The simulated world: threads, clocks, sockets and processes keep the contracts of real ones, and can be repeated."""

from __future__ import annotations

import errno
import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from random import Random
from threading import Thread
from time import monotonic

import pytest

from recovery.testing.world.kernel import Rest, SimProcess, World
from recovery.testing.world.means import SimMeans, of_this_thread
from recovery.testing.world.network import Network
from snapshot.host.net.event_loop import EventLoop
from statebackend import means
from statebackend.backends.backend import LocalDiskFull
from statebackend.backends.scratch_file import ScratchFile
from statebackend.local_folder import FolderInUse, lock_folder
from statebackend.snapshots.local_files import LocalFiles

PORT = 7000


class Little:
    """A world of processes that are started by name."""

    def __init__(self, chance: Random | None = None, room: int = 1 << 16) -> None:
        self.world = World(chance)
        self.network = Network(self.world, chance, room)
        self.means = SimMeans(self.world, self.network)
        self.log: list[object] = []

    def start(self, name: str, main: Callable[[], object]) -> SimProcess:
        return self.world.start(name, f"127.0.0.{len(self.world.processes) + 1}", main)

    def run(self, seconds: float = 100.0) -> Rest:
        return self.world.run(lambda: not any(p.alive for p in self.world.processes), seconds, 100_000)


@contextmanager
def little(chance: Random | None = None, room: int = 1 << 16) -> Iterator[Little]:
    found = Little(chance, room)
    with means.replaced(found.means):
        try:
            yield found
        finally:
            found.world.close()


# --- threads and time


def test_real_threads_beside_the_simulated_ones_keep_the_real_means() -> None:
    found, told = Little(), Queue[tuple[float, int]]()
    with means.replaced(of_this_thread(found.means)):

        def main() -> None:
            real = Thread(target=lambda: told.put((means.monotonic(), means.getpid())))
            real.start()
            real.join()
            found.log.append(means.getpid())

        found.start("a", main)
        found.run()
        found.world.close()
    at, pid = told.get()
    assert pid == os.getpid()
    assert abs(at - monotonic()) < 60
    assert found.log == [100]


def test_time_leaps_to_what_is_due_and_threads_hand_on_through_queues() -> None:
    with little() as world:

        def main() -> None:
            queue: means.SimpleQueue[int] = means.SimpleQueue()

            def put() -> None:
                for number in range(3):
                    means.sleep(1000)
                    queue.put(number)

            means.Thread(target=put).start()
            world.log += [(queue.get(), round(world.world.now)) for _ in range(3)]

        world.start("a", main)
        assert world.run(5000) is Rest.DONE
        assert world.log == [(0, 1000), (1, 2000), (2, 3000)]


def test_a_lock_lets_one_in_at_a_time_and_a_condition_lets_go_of_it_meanwhile() -> None:
    with little() as world:

        def main() -> None:
            changed, ready = means.Condition(), []

            def change() -> None:
                with changed:
                    ready.append(1)
                    changed.notify()
                    means.sleep(1)
                    world.log.append("changed")

            means.Thread(target=change).start()
            with changed:
                assert changed.wait_for(lambda: ready, 5)
                world.log.append("seen")
                assert not changed.wait(0.5)

        world.start("a", main)
        assert world.run() is Rest.DONE
        assert world.log == ["changed", "seen"]


def test_what_is_waited_for_in_vain_is_given_up_in_time_and_what_can_never_come_is_noticed() -> None:
    with little() as world:

        def main() -> None:
            world.log.append(means.Event().wait(2))
            means.Lock().acquire()
            means.SimpleQueue().get()

        world.start("a", main)
        assert world.run() is Rest.STUCK
        assert world.log == [False]
        assert 2 <= world.world.now < 2.1


def test_a_crashed_process_does_nothing_more_and_nothing_of_it_has_an_effect_when_it_is_unwound() -> None:
    with little() as world:

        def main() -> None:
            try:
                means.sleep(10)
            finally:
                means.socketpair()
                world.log.append("not reached")

        process = world.start("a", main)
        world.world.after(1, lambda: world.world.end(process))
        assert world.run() is Rest.DONE
        assert world.log == []
        assert process.exit_code == -9
    assert world.log == []


def test_a_paused_process_stands_still_and_goes_on_where_it_was() -> None:
    with little() as world:

        def main() -> None:
            for _ in range(3):
                means.sleep(1)
                world.log.append(round(world.world.now))

        process = world.start("a", main)
        world.world.after(1.5, lambda: world.world.pause(process))
        world.world.after(20, lambda: world.world.resume(process))
        world.run()
        assert world.log == [1, 20, 21]


def test_processes_have_clocks_of_their_own() -> None:
    with little() as world:

        def main() -> None:
            before = means.monotonic(), means.wall()
            means.sleep(10)
            world.log.append((round(means.monotonic() - before[0]), round(world.world.now)))

        fast = world.start("a", main)
        fast.run_at(2.0)
        world.run()
        assert world.log == [(10, 5)]


# --- the network


def listening() -> socket.socket:
    sock = means.socket(socket.AF_INET)
    sock.bind(("127.0.0.1", PORT))
    sock.listen(5)
    return sock


def when_readable(sock: socket.socket) -> None:
    selector = means.selector()
    selector.register(sock, selectors.EVENT_READ)
    selector.select()
    selector.unregister(sock)


def connected() -> socket.socket:
    sock = means.socket(socket.AF_INET)
    assert sock.connect_ex(("127.0.0.1", PORT)) == errno.EINPROGRESS
    selector = means.selector()
    selector.register(sock, selectors.EVENT_WRITE)
    selector.select()
    selector.unregister(sock)
    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, "no connection")
    return sock


def accepted(server: socket.socket) -> socket.socket:
    when_readable(server)
    return server.accept()[0]


def all_of(sock: socket.socket) -> bytes:
    data = b""
    while True:
        when_readable(sock)
        piece = sock.recv(100)
        if not piece:
            return data
        data += piece


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_in_their_order_each_once_and_no_more_than_there_is_room_for_are_on_their_way(seed: int) -> None:
    text = bytes(range(256)) * 40
    with little(Random(seed), room=777) as world:

        def serve() -> None:
            server = listening()
            world.log.append(all_of(accepted(server)))

        def call() -> None:
            means.sleep(0.1)
            sock, left = connected(), text
            selector = means.selector()
            selector.register(sock, selectors.EVENT_WRITE)
            while left:
                selector.select()
                sent = sock.send(left)
                assert sent <= 777
                left = left[sent:]
            sock.close()

        world.start("server", serve)
        world.start("caller", call)
        assert world.run() is Rest.DONE
        assert world.log == [text]


def test_a_port_at_which_no_process_listens_refuses() -> None:
    with little() as world:

        def call() -> None:
            with pytest.raises(OSError, match="no connection") as raised:
                connected()
            world.log.append(raised.value.errno)

        world.start("caller", call)
        assert world.run() is Rest.DONE
        assert world.log == [errno.ECONNREFUSED]


def test_what_a_crashed_process_has_sent_arrives_and_then_its_connections_end() -> None:
    with little() as world:

        def serve() -> None:
            server = listening()
            world.log.append(all_of(accepted(server)))

        def call() -> None:
            means.sleep(0.1)
            connected().send(b"last words")
            means.exit_process(3)

        world.start("server", serve)
        caller = world.start("caller", call)
        assert world.run() is Rest.DONE
        assert world.log == [b"last words"]
        assert caller.exit_code == 3


@pytest.mark.parametrize(("healed", "heard"), [(2.0, b"late"), (50.0, errno.ETIMEDOUT)])
def test_a_cut_link_holds_back_what_is_sent_and_breaks_a_connection_that_minds_silence(
    healed: float, heard: object
) -> None:
    with little() as world:

        def serve() -> None:
            sock = accepted(listening())
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000)
            try:
                when_readable(sock)
                world.log.append(sock.recv(100))
            except OSError as error:
                world.log.append(error.errno)

        def call() -> None:
            means.sleep(0.1)
            sock = connected()
            means.sleep(1)
            link = world.network.link("caller", "server")
            world.network.cut(link)
            sock.send(b"late")
            world.world.after(healed, lambda: world.network.heal(link))
            means.sleep(60)

        world.start("server", serve)
        world.start("caller", call)
        world.run()
        assert world.log == [heard]


def test_an_event_loop_runs_as_it_is() -> None:
    with little() as world:

        def main() -> None:
            loop = EventLoop()
            loop.call_at(loop.now() + 100, lambda: world.log.append(round(world.world.now)))

            def wake() -> None:
                means.sleep(5)
                loop.wake(lambda: world.log.append("woken"))

            means.Thread(target=wake).start()
            loop.run(lambda: len(world.log) == 2)
            loop.close()

        world.start("a", main)
        assert world.run(1000) is Rest.DONE
        assert world.log == ["woken", 100]


# --- the same again


def test_the_same_chance_gives_the_same_history_and_another_one_another() -> None:
    def history(seed: int) -> tuple[int, list[object]]:
        with little(Random(seed)) as world:

            def main() -> None:
                def log(name: int) -> None:
                    means.sleep(0)
                    world.log.append(name)

                for name in range(5):
                    means.Thread(target=log, args=(name,)).start()
                means.sleep(1)
                world.log.append(means.token_hex(4))

            world.start("a", main)
            world.start("b", main)
            world.run()
            return world.world.digest, world.log

    found = [history(seed) for seed in range(10)]
    assert found == [history(seed) for seed in range(10)]
    assert len({str(log) for _, log in found}) > 1


# --- the local disk


def test_a_local_folder_is_locked_until_its_process_is_gone_or_has_closed_it(tmp_path: Path) -> None:
    with little() as world:

        def hold() -> None:
            os.close(lock_folder(tmp_path))
            lock_folder(tmp_path)
            with pytest.raises(FolderInUse):
                lock_folder(tmp_path)
            means.sleep(100)

        def wait() -> None:
            means.sleep(1)
            with pytest.raises(FolderInUse):
                lock_folder(tmp_path)
            world.world.end(holder)
            lock_folder(tmp_path)
            world.log.append("locked")

        holder = world.start("holder", hold)
        world.start("waiter", wait)
        assert world.run() is Rest.DONE
        assert world.log == ["locked"]


def test_the_disk_may_be_full_and_says_so_as_a_real_one_does(tmp_path: Path) -> None:
    with little() as world:

        def full(_: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def write() -> None:
            ScratchFile(tmp_path).append(b"x")
            world.means.disk = full
            with pytest.raises(LocalDiskFull, match="disk is full"):
                ScratchFile(tmp_path)
            with pytest.raises(LocalDiskFull, match="disk is full"):
                LocalFiles(tmp_path)
            world.log.append("full")

        world.start("writer", write)
        assert world.run() is Rest.DONE
        assert world.log == ["full"]
