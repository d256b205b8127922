"""Functions of all rows of a key in a window at once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from snapshot.operators.keyed_function import KeyedFunction, has_timers, keys_of
from snapshot.operators.operator import Input, Operator, OperatorContext
from snapshot.operators.row_class import Row, row_codec, row_problems, rows_of
from snapshot.operators.rows import Rows
from snapshot.operators.windows.calls import WindowCalls, WindowFunction
from snapshot.operators.windows.declaration import OverWindows
from snapshot.operators.windows.keys import KEYS, KEYS_DECLARED, Already, Firing, Key, WindowKeys
from snapshot.operators.windows.kinds import Session, Window
from snapshot.operators.windows.operator import LATE, WindowOperator
from snapshot.operators.windows.session_contents import SessionRows, rows_codec
from snapshot.operators.windows.session_operator import SessionOperator, session_states
from statebackend.keys.columns import KeyColumn
from statebackend.states.declarations import Declaration, ListState
from statebackend.states.list_state import ListHandle
from statebackend.states.namespaces import Window as Span

_ROWS: Final = "rows of windows"


@dataclass(frozen=True, slots=True, eq=False)
class WindowProcess(OverWindows):
    """The operator that calls a `WindowFunction` for each key of each window.

    Rows that are late are dealt with as in `WindowAggregate`.
    """

    window: Window
    function: WindowFunction
    input: Input
    output: pa.Schema
    lateness_ms: int = 0
    late: bool = False
    declared_sides: Mapping[str, pa.Schema] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return a label with the function and the windows."""
        return f"process({type(self.function).__name__}) in {self.window}"

    @property
    def states(self) -> Mapping[str, Declaration[Any]]:
        """Return the states that the class declares, and those for the rows of the windows."""
        row = row_codec(self.input.schema)
        if isinstance(self.window, Session):
            return {**self.function.states(), **session_states(self.window, rows_codec(row))}
        return {**self.function.states(), KEYS: KEYS_DECLARED, _ROWS: ListState(row)}

    @property
    def sides(self) -> Mapping[str, pa.Schema]:
        """Return the declared side outputs, and the one for late rows, if it was asked for."""
        # A bare super() knows the class before `slots=True` made another of it.
        return {**self.declared_sides, **super(WindowProcess, self).sides}

    def check(self) -> Sequence[str]:
        """Return the problems of the class, the windows, the key and the columns."""
        problems = [
            *self._problems(),
            *row_problems(self.input.schema),
        ]
        if self.late and LATE in self.declared_sides:
            problems.append(f"the side output {LATE!r} is that of late rows: give yours another name")
        given: object = self.function
        if not isinstance(given, WindowFunction):
            return [f"{given!r} is no instance of a subclass of WindowFunction", *problems]
        name = type(self.function).__name__
        if type(self.function).on_window is WindowFunction.on_window:
            problems.append(f"{name} has no method on_window(self, key, window, rows, ctx)")
        if has_timers(self.function):
            problems.append(f"{name} has a method on_timer, and functions of windows have no timers")
        problems += [
            f"{name} declares a state {state!r}, which is the name of a method: choose another"
            for state in self.function.states()
            if hasattr(KeyedFunction, state) or state == "on_window"
        ]
        return problems

    def open(self, context: OperatorContext) -> Operator:
        """Open it in a partition."""
        calls = WindowCalls(self.function, self.output, self.sides, self.label, self.timed, context)
        if isinstance(self.window, Session):
            contents = SessionRows(calls, row_codec(self.input.schema))
            return SessionOperator(self.window, self.lateness, contents, self.input, context)
        return WindowOperator(self.window, self.lateness, _Kept(self, calls, context), self.input, context)


class _Kept:
    """The rows of all windows: a list in the namespace of the window for each key."""

    def __init__(self, plan: WindowProcess, calls: WindowCalls, context: OperatorContext) -> None:
        self._plan, self._state = plan, context.state
        self._keys = WindowKeys(plan.input, context)
        self.table = self._keys.table
        self._rows: ListHandle[Row] = context.state[_ROWS]
        self._calls = calls
        self._overdue = context.overdue
        self.advance, self.close = calls.at, calls.close

    def windows(self) -> Iterator[Span]:
        """Return the windows that have keys."""
        return self._keys.windows()

    def add(self, window: Span, rows: Rows, again: bool) -> KeyColumn:
        """Keep rows, and call the function anew for their keys if `again`; return the rows' keys."""
        column, last = self._keys.add(window, rows.batch)
        keys = keys_of(rows.batch, self._plan.input.keys, self._state.key_type)
        kept, state = self._rows, self._state
        state.set_namespace(window.namespace)
        for key, event in zip(keys, rows_of(rows.batch), strict=True):
            state.set_key(key)
            kept.add(event)
        if again:
            self._call(window, [keys[at] for at in last.tolist()])
        return column

    def keys(self, window: Span) -> KeyColumn:
        """Return all keys of a window."""
        return self._keys.keys(window)

    def fire(self, window: Span, already: Already | None, given: Collection[Key]) -> Firing:
        """Call the function for each key; stop after a call where `overdue` says so, and yield the keys since."""
        encode, overdue = self._state.key_type.encode, self._overdue
        keys = self._keys.plain(self.keys(window), already)
        since: list[object] = []
        for key in keys if not given else [key for key in keys if encode(key) not in given]:
            self._call_one(window, key)
            since.append(key)
            if overdue():
                self._calls.flush()
                yield since
                since = []
        self._calls.flush()

    def drop(self, window: Span) -> None:
        """Forget the window."""
        self._state.set_namespace(window.namespace)
        for key in self._keys.plain(self._keys.keys(window)):
            self._state.set_key(key)
            self._rows.clear()
        self._keys.drop(window)

    def _call(self, window: Span, keys: Sequence[object]) -> None:
        for key in keys:
            self._call_one(window, key)
        self._calls.flush()

    def _call_one(self, window: Span, key: object) -> None:
        self._state.set_namespace(window.namespace)
        self._state.set_key(key)
        self._calls.call(key, window, self._rows.get())
