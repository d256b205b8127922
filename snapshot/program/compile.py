"""From a program to the stages that it runs as.

Invariant: stages begin at sources, at operators with state, at rebalances, and at sinks that several ways lead
to, nowhere else; what is between is chained, once for every way behind a union. Equal programs give equal plans, in
whatever order their outputs were put together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from snapshot.program.nodes import (
    Changed,
    Node,
    Operated,
    Read,
    Rebalanced,
    Selected,
    SideOf,
    Timed,
    United,
    Written,
)
from snapshot.program.plan import (
    Edge,
    Exchange,
    Plan,
    Stage,
    Step,
    Target,
    ToEdge,
    ToSink,
)
from snapshot.program.resolve import Flow, Resolution
from statebackend.ids import Uid

_First: TypeAlias = "Read | Operated | Rebalanced"
_Link: TypeAlias = "Changed | Selected | Timed"
_Begin: TypeAlias = "_First | Written"
"""A stage is about one of these."""


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """One way that rows take: from the output of the first node of a stage through these links."""

    first: _First
    side: str | None
    links: tuple[_Link, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Arriving:
    """All ways into one input of an operator, a rebalance or a sink."""

    input: int
    node: Node
    exchange: Exchange
    keys: tuple[str, ...] = ()


def compiled(outputs: Sequence[Written], found: Resolution, max_parallelism: int) -> Plan:
    """Return the plan of a program that was checked."""
    return _Compiler(outputs, found).plan(max_parallelism)


class _Compiler:
    def __init__(self, outputs: Sequence[Written], found: Resolution) -> None:
        self._flows: Mapping[Node, Flow] = found.flows
        self._found = found
        self._ways = _ways(found.order)
        ends = (*(node for node in found.order if isinstance(node, Operated | Rebalanced)), *outputs)
        self._ends = sorted(ends, key=_uid)
        self._reads = [node for node in found.order if isinstance(node, Read)]
        self._chains: defaultdict[tuple[_First, str | None], list[tuple[tuple[_Link, ...], Target]]] = defaultdict(list)
        self._inputs: defaultdict[_Begin, list[Edge]] = defaultdict(list)

    def plan(self, max_parallelism: int) -> Plan:
        begins: list[_Begin] = [*self._reads]
        for end in self._ends:
            if isinstance(end, Written) and len(self._ways[end.input]) == 1:
                self._chain(self._ways[end.input][0], self._sink(end))
            else:
                begins.append(end)
                self._connect(end)
        return Plan(tuple(_topological([self._stage(begin) for begin in begins])), max_parallelism)

    def _connect(self, end: _Begin) -> None:
        inputs = list(_arriving(end))
        count: defaultdict[tuple[Uid, int], int] = defaultdict(int)
        for arriving in inputs:
            flow = self._flows[arriving.node]
            for way in self._ways[arriving.node]:
                source = _uid(way.first)
                # Each input has ports of its own, so that another way into one renumbers none of the other's.
                port = count[source, arriving.input] * len(inputs) + arriving.input
                count[source, arriving.input] += 1
                edge = Edge(
                    source=source,
                    target=_uid(end),
                    port=port,
                    input=arriving.input,
                    exchange=arriving.exchange,
                    schema=flow.schema,
                    timed=flow.timed,
                    keys=arriving.keys,
                )
                self._inputs[end].append(edge)
                self._chain(way, ToEdge(edge))

    def _chain(self, way: _Way, target: Target) -> None:
        self._chains[way.first, way.side].append((way.links, target))

    def _sink(self, end: Written) -> ToSink:
        return ToSink(_uid(end), end.sink, self._flows[end.input].schema)

    def _stage(self, begin: _Begin) -> Stage:
        uid, inputs = _uid(begin), tuple(self._inputs[begin])
        if isinstance(begin, Written):
            return Stage(uid, inputs, {None: (self._sink(begin),)})
        outputs = {
            side: self._grown(chains)
            for (first, side), chains in sorted(self._chains.items(), key=lambda item: item[0][1] or "")
            if first is begin
        }
        match begin:
            case Read(source=source, event_time=event_time):
                if event_time is not None:
                    outputs = {side: (Step(None, event_time, then),) for side, then in outputs.items()}
                return Stage(uid, inputs, outputs, source=source)
            case Operated():
                return Stage(uid, inputs, outputs, operator=self._found.operators[begin])
            case Rebalanced():
                return Stage(uid, inputs, outputs)

    def _grown(self, chains: Sequence[tuple[tuple[_Link, ...], Target]]) -> tuple[Target, ...]:
        """Return the tree of these chains, in which what they have in common is done once."""
        branches: dict[_Link, list[tuple[tuple[_Link, ...], Target]]] = {}
        grown: list[Target | _Link] = []
        for links, target in chains:
            if not links:
                grown.append(target)
            elif links[0] in branches:
                branches[links[0]].append((links[1:], target))
            else:
                branches[links[0]] = [(links[1:], target)]
                grown.append(links[0])
        return tuple(
            self._step(one, self._grown(branches[one])) if isinstance(one, Changed | Selected | Timed) else one
            for one in grown
        )

    def _step(self, link: _Link, then: tuple[Target, ...]) -> Step:
        if isinstance(link, Timed):
            return Step(None, link.event_time, then)
        return Step(self._found.transforms[link], None, then)


def _ways(order: Sequence[Node]) -> dict[Node, tuple[_Way, ...]]:
    """Return for each node all ways that rows take to what comes after it, in the order in which unions name them."""
    ways: dict[Node, tuple[_Way, ...]] = {}
    for node in order:
        match node:
            case Read() | Operated() | Rebalanced():
                ways[node] = (_Way(node, None, ()),)
            case SideOf(input=Operated() as operator, name=name):
                ways[node] = (_Way(operator, name, ()),)
            case United(inputs):
                ways[node] = tuple(way for input in inputs for way in ways[input])
            case Changed(input=input) | Selected(input=input) | Timed(input=input):
                ways[node] = tuple(_Way(way.first, way.side, (*way.links, node)) for way in ways[input])
            case SideOf():
                raise AssertionError("a side output of what has none was found by the check")
    return ways


def _arriving(end: _Begin) -> Iterator[_Arriving]:
    match end:
        case Operated(inputs=inputs):
            for index, incoming in enumerate(inputs):
                exchange = Exchange.BROADCAST if incoming.broadcast else Exchange.KEYED
                yield _Arriving(index, incoming.node, exchange, incoming.keys)
        case Rebalanced(input=input):
            yield _Arriving(0, input, Exchange.REBALANCE)
        case Written(input=input):
            yield _Arriving(0, input, Exchange.FORWARD)
        case Read():
            return


def _topological(stages: Sequence[Stage]) -> Iterator[Stage]:
    """Yield each stage after all that it hears from; of those that could be next, the first by uid."""
    named = {stage.uid: stage for stage in stages}
    missing = {stage.uid: {edge.source for edge in stage.inputs} for stage in stages}
    ready = [uid for uid, sources in missing.items() if not sources]
    heapify(ready)
    while ready:
        uid = heappop(ready)
        yield named[uid]
        for target in {edge.target for edge in named[uid].edges}:
            missing[target].discard(uid)
            if not missing[target]:
                heappush(ready, target)


def _uid(begin: _Begin) -> Uid:
    return Uid(begin.uid)
