"""A process's questions to a server whose answers may be lost: each is answered once, or known not to be.

Invariant: an answer that comes after its question was given up is ignored, so no process acts on it twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from snapshot.testing.process import Action, Send

Answered = Callable[[object | None], None]
"""A function that takes the answer; None if none came in time, which says nothing about the acts of the server."""


@dataclass(frozen=True, slots=True)
class Request:
    """A numbered question."""

    id: int
    body: object

    def __str__(self) -> str:
        return f"?{self.id} {self.body}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the question of the same number."""

    id: int
    body: object

    def __str__(self) -> str:
        return f"!{self.id} {self.body}"


class Requests:
    """The questions of one process to one server that are not answered yet. They do not survive its crash."""

    def __init__(self, server: str, first_id: int) -> None:
        self._server = server
        self._next = first_id
        self._waiting: dict[int, Answered] = {}

    def ask(self, body: object, answered: Answered) -> Send:
        """Send a question."""
        self._next += 1
        self._waiting[self._next] = answered
        return Send(self._server, Request(self._next, body))

    def answered(self, answer: Answer) -> None:
        """Pass on an answer, unless it is too late."""
        waiting = self._waiting.pop(answer.id, None)
        if waiting is not None:
            waiting(answer.body)

    def broken(self) -> None:
        """Give up all questions, as the connection is gone: none will be answered any more."""
        for id in list(self._waiting):
            self.time_out(id)

    def time_out(self, id: int) -> None:
        """Wait no longer for an answer."""
        waiting = self._waiting.pop(id, None)
        if waiting is not None:
            waiting(None)

    def actions(self) -> list[Action]:
        """Return the time-out of the oldest question, if there is one."""
        return [Action(f"time out of {self._server}", id, weight=1) for id in list(self._waiting)[:1]]
