"""A sink is asked to commit what another one has prepared."""

from __future__ import annotations

from snapshot.program.sink import CommitAnswer, Sink
from snapshot.testing.sinks import SinkBench, SinkTrial


def bench_of(sink: Sink) -> SinkBench:
    """Return a job with the sink, whose target need not be there."""
    return SinkBench(SinkTrial(sink, lambda environment: environment.delivered))


def answer_to_a_foreign_commit(former: SinkBench, now: Sink) -> CommitAnswer:
    """Return what `now` says when it is to commit what the former sink has prepared; it writes nothing."""
    transaction, payload, _ = former.prepared()
    other = bench_of(now)
    other.environment, other.job = former.environment, former.job
    writer = other.writer()
    answer = writer.commit(transaction, payload)
    writer.close()
    assert other.visible() == []
    return answer
