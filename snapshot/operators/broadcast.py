"""Functions of a keyed stream that a control stream configures.

What always holds: every partition gets every row of the control stream, and nothing else changes broadcast state; so it
is the same in all partitions at a cut, if what control rows of different senders do does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

from snapshot.operators.broadcast_state import Broadcast, BroadcastStates
from snapshot.operators.function_operator import FunctionOperator
from snapshot.operators.keyed_function import FunctionRun, KeyedFunction, NoKeyHere, ProcessContext
from snapshot.program.operator import OperatorContext
from snapshot.program.row_class import Row
from snapshot.program.rows import Rows


class KeyedBroadcastProcess(KeyedFunction):
    """A function of keyed rows, and of control rows that every partition gets.

        class Alert(KeyedBroadcastProcess):
            limits = Broadcast(str, float)
            spent = Value(float, default=0.0)

            def on_event(self, payment, ctx):
                self.spent.set(self.spent.get() + payment.amount)
                if self.spent.get() > self.limits.get(payment.country, 100.0):
                    ctx.emit((payment.user, self.spent.get()))

            def on_broadcast(self, limit, ctx):
                self.limits.put(limit.country, limit.amount)

    Nothing says in which order keyed rows and control rows come.
    """

    def broadcasts(self) -> Mapping[str, Broadcast[Any, Any]]:
        """The broadcast states by name: the attributes of the class that are `Broadcast`. Override it for others."""
        found: dict[str, Broadcast[Any, Any]] = {}
        for members in (*map(vars, reversed(type(self).__mro__)), vars(self)):
            found = {name: declared for name, declared in found.items() if name not in members}
            found.update((name, member) for name, member in members.items() if isinstance(member, Broadcast))
        return found

    def on_event(self, event: Row, ctx: ProcessContext, /) -> None:
        """Called for each keyed row; broadcast state can be read."""
        raise NotImplementedError(f"{type(self).__name__} has no method on_event(self, event, ctx)")

    def on_broadcast(self, event: Row, ctx: ProcessContext, /) -> None:
        """Called for each control row, in every partition; broadcast state can be written, and there is no key.

        It owes to change broadcast state by the row and the broadcast state alone. What it emits, each partition does.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method on_broadcast(self, event, ctx)")


@dataclass(frozen=True, slots=True, eq=False)
class BroadcastProcess(FunctionOperator[KeyedBroadcastProcess]):
    """The operator that calls a `KeyedBroadcastProcess`; its second input is the control stream."""

    kind: ClassVar[str] = "broadcast"
    base: ClassVar[type[KeyedFunction]] = KeyedBroadcastProcess
    handlers: ClassVar[tuple[str, ...]] = ("on_event", "on_broadcast")

    def check(self) -> list[str]:
        """What is wrong with it as far as can be told without running."""
        problems = FunctionOperator.check(self)
        if self.inputs[1].keys:
            problems.append("the control stream is divided by keys; every partition must get the whole of it")
        if isinstance(self.function, KeyedBroadcastProcess):
            both = self.function.broadcasts().keys() & self.function.states().keys()
            problems += [f"{name!r} is declared as keyed state and as broadcast state" for name in sorted(both)]
        return problems

    def open(self, context: OperatorContext) -> BroadcastRun:
        """Open it in a partition; `BroadcastMismatch` if the broadcast state of the snapshot is another."""
        states = BroadcastStates(context.uid, self.function.broadcasts(), context.broadcast)
        return BroadcastRun(FunctionRun(self.function, context, self.outputs, states.maps), states, self.inputs[0].keys)


class BroadcastRun:
    """A `KeyedBroadcastProcess` at work in one partition."""

    def __init__(self, run: FunctionRun, states: BroadcastStates, keys: tuple[str, ...]) -> None:
        function = run.function
        assert isinstance(function, KeyedBroadcastProcess)
        self._run, self._states, self._keys = run, states, keys
        self._on_event, self._on_broadcast = function.on_event, function.on_broadcast
        self._out_of_reach = {name: _OutOfReach(f"{run.label}: state {name!r}") for name in run.states}
        self.watermark, self.wakes_at, self.wake = run.watermark, run.wakes_at, run.wake
        self.close = function.close

    def rows(self, input: int, rows: Rows) -> int:
        """Call `on_event` or `on_broadcast` for each row until it is time."""
        if input == 0:
            return self._run.feed(self._on_event, self._keys, rows)
        self._run.bind(self._out_of_reach)
        self._states.gate.writable = True
        taken = self._run.feed_unkeyed(self._on_broadcast, rows)
        self._states.gate.writable = False
        self._run.bind(self._run.states)
        return taken

    def broadcast(self) -> bytes | None:
        """The broadcast state for the cut."""
        return self._states.to_bytes()


class _OutOfReach:
    """What stands where the state of a key is otherwise: it would be that of whichever key came last."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> NoReturn:
        raise NoKeyHere(f"{self._what} is used in on_broadcast, where there is no key; use broadcast state there")
