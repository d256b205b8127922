"""Decide whether the states of a snapshot fit the present declarations, and how they go on together.

Invariant: a restore under a schema that `fitted` made reads no state as what it is not; what changed in a way
that was not said is refused by a named error; and what a dropped state left behind never becomes part of another state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from statebackend.entries import state_id
from statebackend.ids import Uid
from statebackend.states.schema import CodecSpec, Schema, StateMismatch, StateSpec


def fitted(
    restored: Schema,
    declared: Schema,
    *,
    allow_dropped: frozenset[str] = frozenset(),
    renamed: Mapping[str, str] | None = None,
) -> Schema:
    """Return the declared schema as it goes on from the restored one: to restore by it, and to write it from then on.

    `renamed` maps former names to present ones; a state that is declared no longer has to be in `allow_dropped`.
    Raise `StateMismatch` if anything else does not fit. New states are fine, and so are older versions of a codec that
    it migrates.
    """
    for what, before, now in (
        ("uid", restored.uid, declared.uid),
        ("key type", restored.key_type.name, declared.key_type.name),
        ("maximum parallelism", restored.max_parallelism, declared.max_parallelism),
    ):
        if before != now:
            raise StateMismatch(
                declared.uid, None, f"the {what} was {before}, and is declared as {now}; it is fixed when a job is born"
            )
    former = _former(restored, declared, renamed or {})
    gone = {spec.name: spec for spec in restored.states if spec not in former.values()}
    for name in gone:
        if name not in allow_dropped:
            raise StateMismatch(
                declared.uid, name, "it is in the snapshot and declared no longer: rename it, or allow it to be dropped"
            )
    dropped = tuple(sorted({*restored.dropped, *(spec.stored_as for spec in gone.values())}))
    states = tuple(
        _going_on(declared.uid, former[spec.name], spec) if spec.name in former else _new(spec, restored, dropped)
        for spec in declared.states
    )
    return replace(declared, states=states, dropped=dropped)


def _former(restored: Schema, declared: Schema, renamed: Mapping[str, str]) -> dict[str, StateSpec]:
    """Return what each declared state was in the restored schema, by the present names."""
    before = {spec.name: spec for spec in restored.states}
    present = {spec.name for spec in declared.states}
    for old, new in renamed.items():
        if old not in before:
            raise StateMismatch(declared.uid, old, f"it shall be renamed to {new!r}, but is not in the snapshot")
        if new not in present:
            raise StateMismatch(declared.uid, new, f"{old!r} shall be renamed to it, but it is not declared")
        if new in before and new not in renamed:
            raise StateMismatch(declared.uid, new, f"{old!r} shall be renamed to it, but it is in the snapshot itself")
    former = {name: before[name] for name in before if name in present and name not in renamed}
    for old, new in renamed.items():
        if new in former:
            raise StateMismatch(declared.uid, new, f"more than one state shall become it, {old!r} among them")
        former[new] = before[old]
    return former


def _new(spec: StateSpec, restored: Schema, dropped: tuple[str, ...]) -> StateSpec:
    """Return the spec of a state that begins empty, in a place where no entries of another state can lie."""
    taken = {state_id(name) for name in (*dropped, *(other.stored_as for other in restored.states))}
    stored_as, attempt = spec.stored_as, 1
    while state_id(stored_as) in taken:
        attempt += 1
        stored_as = f"{spec.name}#{attempt}"
    return replace(spec.begun(), stored_as=stored_as)


def _going_on(uid: Uid, before: StateSpec, now: StateSpec) -> StateSpec:
    for what, was, is_now in (
        ("kind", before.kind.value, now.kind.value),
        ("type of map keys", before.map_keys, now.map_keys),
        ("time in which it expires", before.expires, now.expires),
        ("detail", before.detail, now.detail),
    ):
        if was != is_now:
            _changed(uid, now.name, what, was, is_now)
    codec = now.codec
    if before.codec is None or codec is None:
        if before.codec is not codec:
            _changed(uid, now.name, "codec", _name(before.codec), _name(codec))
        return replace(now, stored_as=before.stored_as)
    if before.codec.name != codec.name and before.codec.name not in codec.replaces:
        _changed(uid, now.name, "codec", before.codec.name, codec.name)
    if not codec.oldest <= before.codec.oldest <= before.codec.version <= codec.version:
        raise StateMismatch(
            uid,
            now.name,
            f"its values were written by versions {before.codec.oldest} to {before.codec.version} of "
            f"{before.codec.name}, and the declared {codec.name} reads versions {codec.oldest} to {codec.version}",
        )
    return replace(now, stored_as=before.stored_as, codec=replace(codec, oldest=before.codec.oldest))


def _name(codec: CodecSpec | None) -> str | None:
    return None if codec is None else codec.name


def _changed(uid: Uid, state: str, what: str, was: str | None, is_now: str | None) -> NoReturn:
    raise StateMismatch(
        uid,
        state,
        f"its {what} was {was or 'none'}, and is declared as {is_now or 'none'}: declare it as it was, give it a codec "
        f"that migrates, or another name",
    )
