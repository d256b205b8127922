"""`recovery.compare`: a program under several schemes with the same faults, and the report of what came of it.

Invariant: what it does is what the command `recovery compare` does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from recovery.comparison.plan import Plan
from recovery.comparison.report import write_report
from recovery.comparison.runs import Results, carry_out
from recovery.schemes.named import COMPARED
from snapshot.program.program import Program


def compare(
    program: Program,
    folder: str | Path,
    *,
    schemes: Sequence[str] = tuple(COMPARED),
    faults: Sequence[str] = Plan().faults,
    rate: float | None = None,
    share: float | None = None,
    repeats: int = 3,
    parallelism: int = 2,
    every: str = "1s",
    warm: str = "3s",
    before: str = "4s",
    after: str = "8s",
    lost_after: str | None = None,
    heartbeat: str | None = None,
    name: str = "program",
    told: Callable[[str], object] | None = None,
) -> Results:
    """Run a program under each of these schemes with the same faults, and write a report into the folder.

    Its paced sources are `Generate` with a rate and a `scheduled` column that comes through to an output: latency is
    measured from that time to the moment at which this process has the row. Its other sources end. Sinks are replaced
    by ones that promise the same and bring the rows here, so that no target of the program is written to.

    A fault is said as `recovery inject` says it: `kill worker:0 at epoch:next+0.3s`, `stop worker:1 for 5s`, `cut
    link:0-1 for 3s`, `delay link:0-1 by 200ms for 5s`. Each is due when its moment has come after the one before it;
    the first is due after `warm` and `before`, in which nothing fails, and `after` is what is seen from then on.

    All schemes run at the program's own rate, or at `rate`; or each at a `share` of the highest rate that it sustains,
    which is looked for first, at about ten runs of 8 s for each scheme.

    The runs of the schemes take turns, each scheme `repeats` times. A run that is in the folder already is not done
    again, so a comparison that was interrupted goes on. `told` hears of each run (standard error); `name` stands in
    the report, `report.html`, which needs the extra `report`. What a scheme refuses, and runs that fail, are in the
    results.
    """
    plan = Plan(
        schemes=tuple(schemes),
        faults=tuple(faults),
        rate=rate,
        share=share,
        repeats=repeats,
        parallelism=parallelism,
        every=every,
        warm=warm,
        before=before,
        after=after,
        lost_after=lost_after,
        heartbeat=heartbeat,
    )
    found = carry_out(program, name, plan, Path(folder), told or _to_standard_error)
    write_report(found)
    return found


def _to_standard_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
