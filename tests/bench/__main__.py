"""The command line of the benchmarks: figures as JSON lines on standard output, progress on standard error."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from tests.bench import (
    alignment,
    channels,
    coordinator,
    operators,
    pausing,
    processes,
    savepoint,
    schemes,
    sinks,
    slots,
    slow,
    standbys,
    state_collections,
    state_memory,
    state_pauses,
    state_rescale,
    state_rewind,
    state_throughput,
    state_uploads,
    structured,
    table,
    telemetry,
    w1,
    w2,
    w3,
    w4,
    w6,
)
from tests.bench.figures import Figure, progress

EXAMPLE = 'example: make bench ONLY="coordinator alignment", or python -m tests.bench alignment --write'
STOPPED = 130
"""What a shell expects of a command that Ctrl-C has stopped."""

_FEW_KEYS = 5_000

Workloads = Mapping[str, Callable[[], Iterator[Figure]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments name; the result is the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__, epilog=EXAMPLE)
    names = f"of {', '.join(workloads())}; none for all, and state or W4 for all that begin with it"
    parser.add_argument("only", nargs="*", metavar="ONLY", help=names)
    parser.add_argument("--small", action="store_true", help="try it in seconds, at sizes whose figures mean nothing")
    parser.add_argument("--write", action="store_true", help="renew the committed results instead of showing them")
    given = parser.parse_args(arguments)
    if given.small and given.write:
        parser.error("--small makes no results worth writing; leave one of the two out")
    known = workloads(small=given.small, write=given.write)
    chosen = {only: [name for name in known if name == only or name.startswith(f"{only}/")] for only in given.only}
    unknown = sorted(only for only, names in chosen.items() if not names)
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; known are {', '.join(known)}")
    return _run(known, [name for names in chosen.values() for name in names] or list(known))


def workloads(*, small: bool = False, write: bool = False) -> Workloads:
    """All that can be asked for, by name."""
    sizes = (20, 40) if small else coordinator.SIZES
    rows = alignment.rows((1, 2), (2,)) if small else alignment.rows()
    return {
        coordinator.WORKLOAD: lambda: coordinator.figures(sizes),
        alignment.WORKLOAD: lambda: alignment.figures(rows, alignment.RESULTS if write else None),
        channels.WORKLOAD: lambda: channels.figures(channels.SMALL if small else channels.FULL),
        processes.WORKLOAD: lambda: processes.figures(processes.SMALL if small else processes.FULL),
        slots.WORKLOAD: lambda: slots.figures(_FEW_KEYS if small else slots.KEYS),
        table.WORKLOAD: lambda: table.figures(_FEW_KEYS if small else table.KEYS),
        operators.WORKLOAD: lambda: operators.figures(operators.SMALL if small else operators.FULL),
        "state/throughput": lambda: state_throughput.figures(
            state_throughput.SMALL if small else state_throughput.FULL
        ),
        "state/pauses": lambda: state_pauses.figures(state_pauses.SMALL if small else state_pauses.FULL),
        "state/uploads": lambda: state_uploads.figures(state_uploads.SMALL if small else state_uploads.FULL),
        "state/memory": lambda: state_memory.figures(state_memory.SMALL if small else state_memory.FULL),
        "state/rescale": lambda: state_rescale.figures(state_rescale.SMALL if small else state_rescale.FULL),
        "state/rewind": lambda: state_rewind.figures(state_rewind.SMALL if small else state_rewind.FULL),
        "state/collections": lambda: state_collections.figures(
            state_collections.SMALL if small else state_collections.FULL
        ),
        savepoint.WORKLOAD: lambda: savepoint.figures(savepoint.SMALL if small else savepoint.FULL),
        w1.WORKLOAD: lambda: w1.figures(w1.SMALL if small else w1.FULL),
        w2.WORKLOAD: lambda: w2.figures(w2.SMALL if small else w2.FULL),
        w3.WORKLOAD: lambda: w3.figures(w3.SMALL if small else w3.FULL),
        **{
            name: partial(sinks.figures, part)
            for name, part in sinks.parts(sinks.SMALL if small else sinks.FULL).items()
        },
        **{
            f"{slow.WORKLOAD}/{part}": partial(slow.figures, part, slow.SMALL if small else slow.FULL)
            for part in slow.parts()
        },
        pausing.WORKLOAD: lambda: pausing.figures(pausing.SMALL if small else pausing.FULL),
        schemes.WORKLOAD: lambda: schemes.figures(schemes.SMALL if small else schemes.FULL),
        telemetry.WORKLOAD: lambda: telemetry.figures(telemetry.SMALL if small else telemetry.FULL),
        standbys.WORKLOAD: lambda: standbys.figures(standbys.SMALL if small else standbys.FULL),
        **{
            f"{structured.WORKLOAD}/{name}": partial(part, structured.SMALL if small else structured.FULL)
            for name, part in structured.PARTS.items()
        },
        w6.WORKLOAD: lambda: w6.figures(w6.SMALL if small else w6.FULL),
        **{name: partial(part, w4.SMALL if small else w4.FULL) for name, part in w4.PARTS.items()},
    }


def _run(known: Workloads, names: Sequence[str]) -> int:
    try:
        for name in dict.fromkeys(names):
            for figure in known[name]():
                print(figure.json(), flush=True)
    except KeyboardInterrupt:
        progress("stopped; the figures that were printed are whole")
        return STOPPED
    return 0


if __name__ == "__main__":
    sys.exit(main())
