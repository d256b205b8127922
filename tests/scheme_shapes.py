"""The shapes of simulated jobs under other schemes: the drawn one, with what of it contradicts the scheme left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from recovery.schemes.acks import Acks
from recovery.schemes.active import Active
from recovery.schemes.micro_batches import MicroBatches
from recovery.schemes.passive import Passive
from recovery.schemes.scheme import Scheme
from recovery.schemes.synchronous import Synchronous
from recovery.testing.programs import drawn
from recovery.testing.programs.shape import Shape
from recovery.testing.whole.shape import JobShape
from snapshot.cut.frames import MarkerMode
from snapshot.testing.schedule import Schedule

Changed = Callable[[JobShape], JobShape]


def synchronous(shape: JobShape) -> JobShape:
    """Let sources stand still while an epoch is under way."""
    before = _passive(shape.scheme)
    return _under(
        shape, Synchronous(before.standbys, before.following, before.restarts, before.poisoned_after, before.spread)
    )


def micro_batches(shape: JobShape) -> JobShape:
    """Run the job batch by batch; how large these are follows from the shape."""
    before, at_most = _passive(shape.scheme), (None, 3, 10)[shape.chance % 3]
    batches = MicroBatches(before.standbys, before.following, before.restarts, before.poisoned_after, before.spread)
    under = _under(shape, replace(batches, at_most=at_most))
    return replace(under, turns=5 * shape.turns)  # rows come in as many batches as there are


def acknowledged(shape: JobShape) -> JobShape:
    """Acknowledge frames; rows may come twice."""
    before, options = _passive(shape.scheme), shape.options
    acks = Acks(before.standbys, before.following, before.restarts, before.poisoned_after)
    acks = replace(acks, timeout=("1s", "3s")[shape.chance % 2], max_pending=(None, 5, 20)[shape.chance % 3])
    coordinator = replace(options.coordinator, mode=MarkerMode.AT_LEAST_ONCE, alignment_timeout=None)
    host = replace(options.host, alignment_timeout=None)
    options = replace(options, coordinator=coordinator, host=host)
    return replace(shape, scheme=acks, options=options, turns=3 * shape.turns)


def without_control_streams() -> Sequence[Callable[[Schedule, str], Shape]]:
    """Return how programs are drawn, but for those with a control stream, which `Acks` refuses."""
    return [drawer for drawer in drawn._DRAWERS if drawer is not drawn._configured]


def replicated(shape: JobShape) -> JobShape:
    """Run the job with two replicas of each partition, of which there are as many as there are processes for."""
    options = shape.options
    coordinator = replace(options.coordinator, mode=MarkerMode.ALIGNED, alignment_timeout=None)
    host = replace(options.host, alignment_timeout=None)
    return replace(
        shape,
        scheme=Active(replicas=2, fallback=replace(_passive(shape.scheme), standbys=0)),
        parallelism=tuple(min(parallelism, 2) for parallelism in shape.parallelism),
        options=replace(options, coordinator=coordinator, host=host),
        turns=400_000,
    )


def _passive(scheme: Scheme) -> Passive:
    passive = scheme.fallback if isinstance(scheme, Active) else scheme
    assert isinstance(passive, Passive)
    return passive


def _under(shape: JobShape, scheme: Scheme) -> JobShape:
    options = shape.options
    coordinator = replace(
        options.coordinator,
        mode=MarkerMode.ALIGNED,
        alignment_timeout=None,
        max_in_flight=1,
        rhythm=scheme.rhythm,
    )
    host = replace(options.host, alignment_timeout=None)
    return replace(shape, scheme=scheme, options=replace(options, coordinator=coordinator, host=host))
