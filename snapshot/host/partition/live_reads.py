"""What there is of one key in open state, as it is now and not as an epoch has it.

What always holds: the state is as it was before, and what is read is what the operator itself would find at this
moment: a roll-back may still undo it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.ipc as ipc

from statebackend.canonical.exporting import StateExport
from statebackend.canonical.source import OneKey, source_of
from statebackend.errors import JobError
from statebackend.keyed_state import KeyedState
from statebackend.keygroups import key_group_of


class StillOpening(JobError):
    """The state is not there yet; the message says whose."""


def rows_of_key(state: KeyedState, key: bytes | None, name: str | None) -> tuple[tuple[str, bytes], ...]:
    """Return the key's canonical rows, of one state or of all: each state's name with its rows as an Arrow stream.

    Raise `StateMismatch` if there is no such state. In the event loop's thread, between two calls of the operator.
    """
    schema = state.schema
    specs = schema.states if name is None else (schema.state(name),)
    group = key_group_of(schema.key_type.hash_of(key), schema.max_parallelism)
    source, found = source_of(state), []
    for spec in specs:
        export = StateExport(source, spec, OneKey(key, group))
        sink = pa.BufferOutputStream()
        with ipc.new_stream(sink, export.schema) as stream:
            for batch in export.batches():
                stream.write_batch(batch)
        found.append((spec.name, sink.getvalue().to_pybytes()))
    return tuple(found)
