from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Barrier, Event, Thread, current_thread

import pytest

from statebackend.thread_pool import PoolClosed, ThreadPool


def occupied(pool: ThreadPool) -> Callable[[], None]:
    """Keep one of the threads busy until what is returned is called."""
    begun, leave = Event(), Event()

    def work() -> None:
        begun.set()
        assert leave.wait(30)

    pool.submit(work)
    assert begun.wait(30)
    return leave.set


def test_work_is_done_in_the_order_in_which_it_was_handed_over() -> None:
    pool, done = ThreadPool(1, "one"), list[int]()
    leave = occupied(pool)
    tasks = [pool.submit(partial(done.append, number)) for number in range(100)]
    leave()
    tasks[-1].result()
    assert done == list(range(100))


def test_as_many_threads_work_at_once_as_the_pool_has_and_no_more_begin_than_there_is_work_for() -> None:
    pool, together = ThreadPool(3, "three"), Barrier(3)

    def meet() -> str:
        together.wait(30)
        return current_thread().name

    assert pool.submit(lambda: current_thread().name).result() == "three-0"
    names = {task.result() for task in [pool.submit(meet) for _ in range(3)]}
    assert names == {"three-0", "three-1", "three-2"}


def test_one_thread_serves_calls_that_come_one_after_the_other() -> None:
    pool = ThreadPool(4, "four")
    assert {pool.submit(lambda: current_thread().name).result() for _ in range(50)} == {"four-0"}


def test_an_error_is_the_outcome_of_its_task_and_the_thread_goes_on() -> None:
    pool = ThreadPool(1, "one")
    failed = pool.submit(partial(int, "x"))
    with pytest.raises(ValueError, match="invalid literal"):
        failed.result()
    assert isinstance(failed.error(), ValueError)
    fine = pool.submit(partial(int, "7"))
    assert (fine.result(), fine.error(), fine.is_done) == (7, None, True)


def test_a_pool_that_is_closed_does_what_waits_and_takes_no_more() -> None:
    pool = ThreadPool(1, "one")
    leave = occupied(pool)
    waiting = pool.submit(lambda: "done")
    pool.close()
    assert not waiting.is_done
    leave()
    assert waiting.result() == "done"
    with pytest.raises(PoolClosed):
        pool.submit(print)


def test_work_that_is_dropped_says_so_and_closing_waits_for_what_is_being_done_alone() -> None:
    pool, closed = ThreadPool(1, "one"), Event()
    leave = occupied(pool)
    waiting = pool.submit(lambda: "done")

    def close() -> None:
        pool.close(drop=True, wait=True)
        closed.set()

    closing = Thread(target=close)
    closing.start()
    with pytest.raises(PoolClosed):
        waiting.result()
    assert not closed.is_set()
    leave()
    closing.join(30)
    assert closed.is_set()


def test_a_pool_that_is_dropped_without_closing_does_what_waits_and_its_threads_end() -> None:
    pool = ThreadPool(1, "dropped")
    leave = occupied(pool)
    waiting = pool.submit(current_thread)
    del pool
    leave()
    thread = waiting.result()
    thread.join(30)
    assert not thread.is_alive()


def test_a_pool_works_with_the_threads_that_the_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = ThreadPool(2, "two")
    leave = occupied(pool)
    monkeypatch.setattr(Thread, "start", start)
    waiting = pool.submit(lambda: "done")
    leave()
    assert waiting.result() == "done"
    with pytest.raises(RuntimeError, match="new thread"):
        ThreadPool(1, "none").submit(print)
