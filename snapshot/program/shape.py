"""What a plan is as far as a snapshot depends on it: which uids there are, and what each of them keeps.

What always holds: it is plain data that JSON can hold, and equal for plans that can go on from each other's snapshots
with nothing added, removed or changed.
"""

from __future__ import annotations

from snapshot.frozen_json import JsonLike
from snapshot.program.nodes import name_of
from snapshot.program.operator import KeyedOperator
from snapshot.program.plan import Head, KeyedHead, PassHead, Plan, ReadHead, ToSink
from statebackend.keys.types import KeyType
from statebackend.states.schema import StateSpec


def shape_of(plan: Plan) -> dict[str, JsonLike]:
    """For each uid of the plan, in order, its `kind` (source, operator, sink or pass) and what is kept for it.

    A source and a sink have the `type` that reads or writes; an operator has the name of its `key` type and by name its
    `states`, each with a `kind` and whatever else decides whether its files can be read.
    """
    found: dict[str, JsonLike] = {}
    for stage in plan.stages:
        found[stage.uid] = _of_head(stage.head)
        for sink in stage.sinks:
            found[sink.uid] = _of_sink(sink)
    return {uid: found[uid] for uid in plan.uids}


def _of_head(head: Head) -> JsonLike:
    match head:
        case ReadHead(source):
            return {"kind": "source", "type": name_of(source)}
        case KeyedHead(operator):
            return _of_operator(operator)
        case PassHead():
            return {"kind": "pass"}


def _of_operator(operator: KeyedOperator) -> JsonLike:
    key = KeyType.of(operator.inputs[0].key_declared)
    states = {name: _of_state(declaration.spec(name)) for name, declaration in operator.states.items()}
    return {"kind": "operator", "key": key.name, "states": states}


def _of_state(spec: StateSpec) -> JsonLike:
    state: dict[str, JsonLike] = {"kind": spec.kind.value}
    if spec.codec is not None:
        state["codec"] = spec.codec.name
        state["version"] = spec.codec.version
    if spec.map_keys is not None:
        state["map_keys"] = spec.map_keys
    if spec.expires is not None:
        state["expires"] = spec.expires
    if spec.detail != "null":
        state["detail"] = spec.detail
    return state


def _of_sink(sink: ToSink) -> JsonLike:
    return {"kind": "sink", "type": name_of(sink.sink)}
