"""The promises of a sink when another person has written to the job's tree, as checks that a sink without them fails.

Invariant: each check raises a `Violation` that names the promise. Payloads are changed in one place each: a
field is left out, or has what no sink writes: a way out of a folder, another target, SQL, an escape, another type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from snapshot.epochs.transaction_events import CommitOutcome
from snapshot.ids import TransactionId
from snapshot.program.sink import CommitAnswer, SinkWriter
from snapshot.testing.history import Violation
from snapshot.testing.sink_bench import DONE, SinkBench, SinkTrial
from snapshot.tree.frozen_json import Json, JsonLike
from snapshot.tree.manifest import CommitPayload

_TEXTS: Final = (
    "",
    ".",
    "../..",
    "../../x",
    "/",
    "x' OR 'x'='x",
    'x"; DROP TABLE x; --',
    "\x1b]0;x\x07",
    "x\r\nx: x",
    "x\x00",
    "x" * 300,
)
_OTHERS: Final[tuple[JsonLike, ...]] = (None, True, -1, 2**70, 1.5, [], {}, [[]], {"x": None})


def a_changed_payload_is_refused_or_commits_the_same(trial: SinkTrial) -> None:
    """Check that a commit with a changed payload is refused for good, or shows the rows of its transaction once.

    A refusal may come when some of these are there, as of a transaction of several files. What lies around the target
    stays as it is, and the payload that was prepared can be committed afterwards.
    """
    bench, shown = SinkBench(trial), list[str]()
    before = _outside(trial)
    writer = bench.writer()
    transaction, payload, rows = bench.prepared()
    changes, number = _changed(payload, trial), 0
    while number < len(changes):
        changed = changes[number]
        if _answer(writer, transaction, changed).outcome in DONE:
            shown += rows
            bench.expect(shown, f"what commits {_shown(changed)} shows the rows of its transaction, once")
            transaction, payload, rows = bench.prepared()
            changes = _changed(payload, trial)
        number += 1
    seen = Counter(bench.visible())
    if not Counter(shown) <= seen <= Counter(shown + rows):
        raise Violation(f"a payload that is refused shows no rows but its transaction's, once; readers see {seen}")
    _same_outside(trial, before)
    bench.settle(transaction, payload)
    bench.expect(shown + rows, "what was prepared can be committed after others were refused")
    for changed in _changed(payload, trial):
        _answer(writer, transaction, changed)
    bench.expect(shown + rows, "a payload that is changed after its commit changes nothing")
    _same_outside(trial, before)
    writer.close()


def a_transaction_of_somebody_else_is_refused(trial: SinkTrial) -> None:
    """Check that a sink commits transactions of its own job and uid alone; others stay prepared where they are."""
    bench, foreign = SinkBench(trial), SinkBench(trial)
    writer = bench.writer()
    (transaction, payload, rows), (other, theirs, others) = bench.prepared(), foreign.prepared()
    bench.environment.stored.update(foreign.environment.stored)
    strange = [TransactionId(text) for text in ("", "x", "../../x", f"{transaction}/..", f"{transaction}'")]
    for name, one in ((other, theirs), (other, payload), *((name, payload) for name in strange)):
        if _answer(writer, name, one).outcome is not CommitOutcome.FAILED:
            raise Violation(f"a sink refuses a transaction that is not its own; but not {name!r}")
    bench.expect([], "a foreign transaction is not shown")
    foreign.expect([], "a foreign transaction is not committed")
    foreign.settle(other, theirs)
    foreign.expect(others, "a transaction that another sink refused can be committed by its own")
    bench.settle(transaction, payload)
    bench.expect(rows, "a sink that has refused a transaction commits its own")
    writer.close()


def _answer(writer: SinkWriter, transaction: TransactionId, payload: CommitPayload) -> CommitAnswer:
    try:
        answer = writer.commit(transaction, payload)
    except Exception as error:
        raise Violation(
            f"a payload that its sink did not write is refused; {_shown(payload)} raised {error!r}"
        ) from error
    if answer.outcome is CommitOutcome.RETRY_LATER:
        raise Violation(f"a payload that its sink did not write is refused for good; {_shown(payload)} was {answer}")
    if answer.outcome is CommitOutcome.FAILED and not answer.reason:
        raise Violation(f"a refusal says why; but that of {_shown(payload)} has no reason")
    return answer


def _changed(payload: CommitPayload, trial: SinkTrial) -> list[CommitPayload]:
    """Return payloads with one change each; the same changes for each payload of a sink."""
    texts = (*_TEXTS, *trial.elsewhere)
    changed = [replace(payload, value=Json.of(value)) for value in _variants(payload.value.value(), texts)]
    return changed + ([replace(payload, staged=())] if payload.staged else [])


def _variants(value: JsonLike, texts: tuple[str, ...]) -> Iterator[JsonLike]:
    """Yield the value with one thing in it changed."""
    yield from (other for other in (*texts, *_OTHERS) if other != value or type(other) is not type(value))
    match value:
        case str():
            yield from (f"../{value}", f"x/../{value}", f"/{value}", f"{value}/x", f"{value}\x1b[2J")
        case dict():
            for name, item in value.items():
                yield {other: value[other] for other in value if other != name}
                yield from ({**value, name: changed} for changed in _variants(item, texts))
        case list():
            if value:
                yield [*value, *value]
            for place, item in enumerate(value):
                yield from ([*value[:place], changed, *value[place + 1 :]] for changed in _variants(item, texts))
        case _:
            pass


def _outside(trial: SinkTrial) -> object:
    return None if trial.outside is None else trial.outside()


def _same_outside(trial: SinkTrial, before: object) -> None:
    if (now := _outside(trial)) != before:
        raise Violation(f"a payload leads nowhere but to the sink's target; around it was {before}, and is {now}")


def _shown(payload: CommitPayload) -> str:
    return repr(payload.value.text)


PROMISES: tuple[Callable[[SinkTrial], None], ...] = (
    a_changed_payload_is_refused_or_commits_the_same,
    a_transaction_of_somebody_else_is_refused,
)
"""In the order in which it helps to know that one is broken."""
