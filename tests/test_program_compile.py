from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from snapshot import KeyedBroadcastProcess, KeyedCoProcess, KeyedProcess, Program
from snapshot.operators.operator import Input
from snapshot.operators.row_class import Row
from snapshot.program.nodes import Node, Operated, Read, Rebalanced, United, before, label_of
from snapshot.program.pickling import dumps, loads
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
from tests.program_parts import CLICKS, Nowhere, clicks


class Echo(KeyedProcess):
    output = CLICKS

    def on_event(self, event: Row, ctx: object) -> None: ...


class Both(KeyedCoProcess):
    output = CLICKS

    def on_first(self, event: Row, ctx: object) -> None: ...

    def on_second(self, event: Row, ctx: object) -> None: ...


class Ruled(KeyedBroadcastProcess):
    output = CLICKS

    def on_event(self, event: Row, ctx: object) -> None: ...

    def on_broadcast(self, event: Row, ctx: object) -> None: ...


def same(row: Row) -> Row:
    return row


def good(row: Row) -> bool:
    return True


def stages(plan: Plan) -> dict[str, Stage]:
    return {stage.uid: stage for stage in plan.stages}


def chain(targets: tuple[Target, ...]) -> list[str]:
    """The labels down a chain in which nothing branches."""
    (target,) = targets
    if isinstance(target, Step):
        return [target.transform.label if target.transform else "event time", *chain(target.then)]
    return [f"-> {target.uid if isinstance(target, ToSink) else target.edge.target}"]


def edges_into(plan: Plan, uid: str) -> list[tuple[str, int, int, Exchange, tuple[str, ...]]]:
    return [(edge.source, edge.port, edge.input, edge.exchange, edge.keys) for edge in stages(plan)[uid].inputs]


def test_steps_without_state_are_chained_with_their_source_and_their_sink() -> None:
    plan = clicks().map(same).filter(good).select("user", "cents").write(Nowhere(), uid="out").plan()
    (stage,) = plan.stages
    assert stage.source is not None
    assert chain(stage.outputs[None]) == ["map(same)", "filter(good)", "select(user, cents)", "-> out"]
    assert stage.uids == ("clicks", "out")


def test_a_keyed_operator_begins_a_stage_and_names_its_key_on_the_edge() -> None:
    plan = clicks().key_by("user", "cents").process(Echo, uid="echo").map(same).write(Nowhere(), uid="out").plan()
    assert [stage.uid for stage in plan.stages] == ["clicks", "echo"]
    assert edges_into(plan, "echo") == [("clicks", 0, 0, Exchange.KEYED, ("user", "cents"))]
    assert stages(plan)["echo"].operator is not None
    assert chain(stages(plan)["echo"].outputs[None]) == ["map(same)", "-> out"]


def test_event_time_of_a_source_is_given_right_behind_it_and_edges_know_that_rows_are_timed() -> None:
    plan = clicks(timed=True).map(same).key_by("user").process(Echo, uid="echo").write(Nowhere(), uid="out").plan()
    assert chain(stages(plan)["clicks"].outputs[None]) == ["event time", "map(same)", "-> echo"]
    assert stages(plan)["echo"].inputs[0].timed
    operator = stages(plan)["echo"].operator
    assert operator is not None
    assert operator.inputs[0].timed


def test_what_is_behind_a_union_is_done_in_the_stage_of_each_of_its_streams() -> None:
    united = clicks("a").union(clicks("b").filter(good)).map(same)
    plan = united.key_by("user").process(Echo, uid="echo").write(Nowhere(), uid="out").plan()
    assert [stage.uid for stage in plan.stages] == ["a", "b", "echo"]
    assert chain(stages(plan)["a"].outputs[None]) == ["map(same)", "-> echo"]
    assert chain(stages(plan)["b"].outputs[None]) == ["filter(good)", "map(same)", "-> echo"]
    assert [edge[:3] for edge in edges_into(plan, "echo")] == [("a", 0, 0), ("b", 0, 0)]


def test_ways_from_one_stage_to_another_have_ports_of_their_own() -> None:
    a = clicks("a")
    plan = a.filter(good).union(a).key_by("user").process(Echo, uid="echo").write(Nowhere(), uid="out").plan()
    assert [edge[:3] for edge in edges_into(plan, "echo")] == [("a", 0, 0), ("a", 1, 0)]
    step, edge = stages(plan)["a"].outputs[None]
    assert isinstance(step, Step)
    assert isinstance(edge, ToEdge)
    assert edge.edge.port == 1


def test_a_stream_united_with_itself_is_transformed_once_and_sent_twice() -> None:
    a = clicks("a")
    plan = a.union(a).map(same).key_by("user").process(Echo, uid="echo").write(Nowhere(), uid="out").plan()
    (step,) = stages(plan)["a"].outputs[None]
    assert isinstance(step, Step)
    assert [target.edge.port for target in step.then if isinstance(target, ToEdge)] == [0, 1]


def test_a_sink_that_several_ways_lead_to_is_a_stage_of_its_own() -> None:
    plan = clicks("a").union(clicks("b")).write(Nowhere(), uid="out").plan()
    out = stages(plan)["out"]
    assert out.source is None
    assert out.operator is None
    assert [edge[:4] for edge in edges_into(plan, "out")] == [
        ("a", 0, 0, Exchange.FORWARD),
        ("b", 0, 0, Exchange.FORWARD),
    ]
    assert chain(out.outputs[None]) == ["-> out"]
    assert out.uids == ("out",)


def test_a_stream_can_have_any_number_of_consumers() -> None:
    a = clicks("a").map(same)
    echo = a.key_by("user").process(Echo, uid="echo")
    plan = (a.write(Nowhere(), uid="raw") + echo.write(Nowhere(), uid="x") + echo.write(Nowhere(), uid="y")).plan()
    (step,) = stages(plan)["a"].outputs[None]
    assert isinstance(step, Step)
    assert [chain((target,)) for target in step.then] == [["-> echo"], ["-> raw"]]
    assert [sink.uid for sink in stages(plan)["echo"].sinks] == ["x", "y"]


def test_a_rebalance_begins_a_stage_that_passes_rows_on() -> None:
    plan = clicks("a").rebalance(uid="deal").map(same).write(Nowhere(), uid="out").plan()
    assert edges_into(plan, "deal") == [("a", 0, 0, Exchange.REBALANCE, ())]
    assert stages(plan)["deal"].source is None
    assert stages(plan)["deal"].operator is None
    assert chain(stages(plan)["deal"].outputs[None]) == ["map(same)", "-> out"]


def test_connected_streams_are_two_inputs_of_one_operator() -> None:
    second = clicks("b", schema={"name": str, "at": int})
    plan = clicks("a").key_by("user").connect(second.key_by("name")).process(Both, uid="both")
    assert edges_into(plan.write(Nowhere(), uid="out").plan(), "both") == [
        ("a", 0, 0, Exchange.KEYED, ("user",)),
        ("b", 1, 1, Exchange.KEYED, ("name",)),
    ]


def test_both_inputs_from_one_stage_have_different_ports() -> None:
    a = clicks("a")
    both = a.key_by("user").connect(a.filter(good).key_by("user")).process(Both, uid="both")
    assert [edge[:3] for edge in edges_into(both.write(Nowhere(), uid="out").plan(), "both")] == [
        ("a", 0, 0),
        ("a", 1, 1),
    ]


def test_another_way_into_one_input_leaves_the_ports_of_the_other_as_they_are() -> None:
    a = clicks("a")
    both = a.union(a.filter(good)).key_by("user").connect(a.key_by("user")).process(Both, uid="both")
    assert [edge[:3] for edge in edges_into(both.write(Nowhere(), uid="out").plan(), "both")] == [
        ("a", 0, 0),
        ("a", 2, 0),
        ("a", 1, 1),
    ]


def test_a_control_stream_goes_to_all_partitions() -> None:
    rules = clicks("rules", schema={"limit": int}).broadcast()
    ruled = clicks("a").key_by("user").connect(rules).process(Ruled, uid="ruled")
    assert edges_into(ruled.write(Nowhere(), uid="out").plan(), "ruled") == [
        ("a", 0, 0, Exchange.KEYED, ("user",)),
        ("rules", 1, 1, Exchange.BROADCAST, ()),
    ]


def test_side_outputs_stand_beside_the_main_one() -> None:
    echo = clicks().key_by("user").process(Echo, uid="echo", sides={"odd": {"why": str}})
    plan = Program.of(echo.write(Nowhere(), uid="out"), echo.side("odd").write(Nowhere(), uid="odds")).plan()
    assert {side: chain(targets) for side, targets in stages(plan)["echo"].outputs.items()} == {
        None: ["-> out"],
        "odd": ["-> odds"],
    }
    assert [sink.schema.names for sink in stages(plan)["echo"].sinks] == [["user", "cents", "at"], ["why"]]


def test_an_output_that_nobody_uses_is_left_out() -> None:
    echo = clicks().key_by("user").process(Echo, uid="echo", sides={"odd": {"why": str}})
    plan = echo.side("odd").write(Nowhere(), uid="odds").plan()
    assert list(stages(plan)["echo"].outputs) == ["odd"]


def test_the_order_in_which_outputs_were_put_together_changes_nothing() -> None:
    def program(turned: bool) -> Program:
        a, b = clicks("a"), clicks("b")
        echo = a.union(b).map(same).key_by("user").process(Echo, uid="echo").write(Nowhere(), uid="x")
        parts = [echo, a.map(same).write(Nowhere(), uid="y"), a.filter(good).write(Nowhere(), uid="z")]
        return Program.of(*(reversed(parts) if turned else parts))

    assert text_of(program(False).plan()) == text_of(program(True).plan())


def test_the_maximum_parallelism_is_in_the_plan() -> None:
    assert clicks().write(Nowhere(), uid="out").plan(max_parallelism=7).max_parallelism == 7


# --- any graph -------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> Program:
    streams = [clicks("s0", timed=(timed := draw(st.booleans())))]
    for index in range(1, draw(st.integers(1, 8))):
        stream = draw(st.sampled_from(streams))
        other = draw(st.sampled_from(streams))
        match draw(st.integers(0, 6)):
            case 0:
                made = clicks(f"s{index}", timed=timed)
            case 1:
                made = stream.map(same)
            case 2:
                made = stream.filter(good)
            case 3:
                made = stream.union(other)
            case 4:
                made = stream.rebalance(uid=f"r{index}")
            case 5:
                made = stream.key_by("user").process(Echo, uid=f"k{index}")
            case _:
                made = stream.key_by("user").connect(other.key_by("user")).process(Both, uid=f"b{index}")
        streams.append(made)
    written = draw(st.lists(st.sampled_from(range(len(streams))), min_size=1, max_size=4, unique=True))
    return Program.of(*(streams[index].write(Nowhere(), uid=f"w{index}") for index in written))


@given(programs())
def test_every_graph_has_a_plan_that_keeps_the_rules_of_plans(program: Program) -> None:
    plan = program.plan()
    order = {stage.uid: index for index, stage in enumerate(plan.stages)}
    left = [edge for stage in plan.stages for edge in stage.edges]
    arrived = [edge for stage in plan.stages for edge in stage.inputs]
    assert Counter(map(id, left)) == Counter(map(id, arrived))
    assert all(order[edge.source] < order[edge.target] for edge in left)
    assert not twice([(edge.source, edge.target, edge.port) for edge in left])
    assert not twice(list(plan.uids))
    for stage in plan.stages:
        assert all(edge.target == stage.uid for edge in stage.inputs)
        assert all(edge.source == stage.uid for edge in stage.edges)
        assert inputs_fit(stage)
        for targets in stage.outputs.values():
            assert chains_fit(targets, schema_into_chains(stage), stage, timed=timed_before(stage))


@given(programs())
def test_a_plan_has_exactly_the_ways_that_rows_can_take_through_the_program(program: Program) -> None:
    plan = program.plan()
    wanted: Counter[tuple[str, ...]] = Counter()
    for output in program.outputs:
        wanted.update((*way, f"sink {output.uid}") for way in ways_in_graph(output.input))
    assert Counter(way for stage in plan.stages for way in ways_in_plan(plan, stage)) == wanted


@given(programs())
def test_a_plan_can_be_pickled_and_is_then_the_same(program: Program) -> None:
    plan = program.plan()
    again = loads(dumps(plan))
    assert isinstance(again, Plan)
    assert text_of(again) == text_of(plan)


def twice(names: Sequence[object]) -> list[object]:
    return [name for name, count in Counter(names).items() if count > 1]


def inputs_fit(stage: Stage) -> bool:
    if stage.source is not None:
        return stage.operator is None and not stage.inputs
    if stage.operator is not None:
        wanted = stage.operator.inputs
        fit = all(edge_fits(edge, wanted[edge.input]) for edge in stage.inputs)
        return fit and {edge.input for edge in stage.inputs} == set(range(len(wanted)))
    exchange = Exchange.FORWARD if stage.sinks and stage.sinks[0].uid == stage.uid else Exchange.REBALANCE
    least = 2 if exchange is Exchange.FORWARD else 1
    return len(stage.inputs) >= least and all(edge.exchange is exchange for edge in stage.inputs)


def edge_fits(edge: Edge, input: Input) -> bool:
    exchange = Exchange.KEYED if input.keys else Exchange.BROADCAST
    return (edge.exchange, edge.keys, edge.timed) == (exchange, input.keys, input.timed) and edge.schema == input.schema


def schema_into_chains(stage: Stage) -> pa.Schema:
    if stage.source is not None:
        return stage.source.schema
    return pa.schema(clicks_schema()) if stage.operator is None else stage.operator.output


def clicks_schema() -> list[pa.Field]:
    return [pa.field("user", pa.string()), pa.field("cents", pa.int64()), pa.field("at", pa.timestamp("ms"))]


def timed_before(stage: Stage) -> bool:
    return bool(stage.inputs) and stage.inputs[0].timed


def chains_fit(targets: tuple[Target, ...], schema: pa.Schema, stage: Stage, *, timed: bool) -> bool:
    for target in targets:
        match target:
            case Step(None, event_time, then):
                if event_time is None or timed or stage.source is None:
                    return False
                if not chains_fit(then, schema, stage, timed=True):
                    return False
            case Step(transform, _, then):
                assert transform is not None
                if not chains_fit(then, transform.output, stage, timed=timed):
                    return False
            case ToSink(schema=given):
                if given != schema:
                    return False
            case ToEdge(edge):
                if edge.schema != schema or edge.timed != timed:
                    return False
    return True


def ways_in_graph(node: Node) -> Iterator[tuple[str, ...]]:
    """All ways from a source, each as the steps on it; by looking at the graph alone."""
    match node:
        case Read(uid=uid, event_time=event_time):
            yield (f"source {uid}", *(["event time"] if event_time else []))
        case United(inputs):
            for input in inputs:
                yield from ways_in_graph(input)
        case Operated(uid=uid, inputs=inputs):
            for index, incoming in enumerate(inputs):
                yield from ((*way, f"{uid}.{index}") for way in ways_in_graph(incoming.node))
        case Rebalanced(uid=uid):
            yield from ((*way, f"{uid}.0") for way in ways_in_graph(node.input))
        case _:
            yield from ((*way, label_of(node)) for way in ways_in_graph(before(node)[0]))


def ways_in_plan(plan: Plan, stage: Stage) -> Iterator[tuple[str, ...]]:
    """All ways from a source to a sink of this stage; by following rows backwards through the plan."""
    for way, target in ends(stage):
        if isinstance(target, ToSink):
            yield from ((*first, *way, f"sink {target.uid}") for first in ways_into(plan, stage))


def ways_into(plan: Plan, stage: Stage) -> Iterator[tuple[str, ...]]:
    if stage.source is not None:
        yield (f"source {stage.uid}",)
    for edge in stage.inputs:
        source = stages(plan)[edge.source]
        hop = () if edge.exchange is Exchange.FORWARD else (f"{stage.uid}.{edge.input}",)
        for way, target in ends(source):
            if isinstance(target, ToEdge) and target.edge is edge:
                yield from ((*first, *way, *hop) for first in ways_into(plan, source))


def ends(stage: Stage) -> Iterator[tuple[tuple[str, ...], ToSink | ToEdge]]:
    for targets in stage.outputs.values():
        yield from ends_of(targets, ())


def ends_of(targets: tuple[Target, ...], way: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ToSink | ToEdge]]:
    for target in targets:
        if isinstance(target, Step):
            label = "event time" if target.transform is None else target.transform.label
            yield from ends_of(target.then, (*way, label))
        else:
            yield way, target


def text_of(plan: Plan) -> list[object]:
    """A plan as values that can be compared."""
    return [
        (stage.uid, stage.source is None, stage.operator is None, [edge_text(edge) for edge in stage.inputs], [
            (side, way, target.uid if isinstance(target, ToSink) else edge_text(target.edge))
            for side, targets in stage.outputs.items()
            for way, target in ends_of(targets, ())
        ])
        for stage in plan.stages
    ]  # fmt: skip


def edge_text(edge: Edge) -> tuple[object, ...]:
    return (edge.source, edge.target, edge.port, edge.input, edge.exchange, edge.keys, str(edge.schema), edge.timed)
