"""The sink and place that a payload was made for, read and checked before anything is done with it.

Invariant: a payload comes from the job's tree, and any writer of that tree may have changed it. So a sink acts on no
field that was not read here: a payload of another transaction or kind of sink is refused, so is a name that the sink
would not have given, and rows go to the sink's own place, unless another one was allowed by its name. Rows that are
refused stay in the job's tree, and a sentence says what to do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from snapshot.epochs.transaction_events import CommitOutcome, parse_transaction_id
from snapshot.ids import TransactionId
from snapshot.program.sink import CommitAnswer, SinkContext, UnusableOutput
from snapshot.tree.frozen_json import JsonLike
from snapshot.tree.manifest import CommitPayload
from statebackend.errors import JobError

MADE_BY: Final = "sink"
"""The field in which a payload names the class of its sink."""
PLACE: Final = "place"
"""The field with the place of the rows: a text, or an object whose values are texts, or lists of them."""
NONCE: Final = re.compile(r"[0-9a-f]{16}")
"""The form of the random text that tells transactions of the same name apart."""
_BARE: Final = re.compile(r"[^\s\"\\,=]+")
_SLASHES: Final = re.compile(r"(?<=[^/:])/+\Z")
_MOST: Final = 2**63 - 1

Read = TypeVar("Read")
UNREADABLE_FIELDS: Final = (ValueError, OverflowError, RecursionError, pa.ArrowException)
"""The errors that reading a payload may raise if its sink did not write it."""


class BadPayload(JobError, ValueError):
    """A payload that the sink did not make like this; the message says in which field."""


class AnotherKind(JobError, ValueError):
    """A payload of another kind of sink; the message says what to do."""


class OtherPlace(JobError, ValueError):
    """A payload whose rows are for a place that is not the sink's, and was not allowed; the message says what to do."""


@dataclass(frozen=True, slots=True)
class PayloadFields:
    """The fields of a payload, or of an object in it, each read as what it has to be; `BadPayload` if it is not.

    `accepted` are the places that were allowed by name.
    """

    fields: Mapping[str, JsonLike]
    rows: str
    """The rows that the payload is about, for sentences."""
    accepted: Collection[str] = ()

    def text(self, name: str, form: re.Pattern[str] | None = None) -> str:
        """Return a text; if there is a form, all of the text matches it."""
        value = self._field(name)
        if not isinstance(value, str) or (form is not None and not form.fullmatch(value)):
            raise BadPayload(f"{name} is {_shown(value)}")
        return value

    def same(self, name: str, text: str) -> str:
        """Return a text that can only be this one, as it follows from the transaction."""
        if (found := self._field(name)) != text:
            raise BadPayload(f"{name} is {_shown(found)}, where only {text!r} can stand")
        return text

    def number(self, name: str, least: int = 0, most: int = _MOST) -> int:
        """Return a whole number in these bounds."""
        return whole_number(self._field(name), name, least, most)

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self._field(name)
        if not isinstance(value, bool):
            raise BadPayload(f"{name} is {_shown(value)}")
        return value

    def items(self, name: str) -> list[JsonLike]:
        """Return a list of anything."""
        value = self._field(name)
        if not isinstance(value, list):
            raise BadPayload(f"{name} is {_shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts."""
        value = self.items(name)
        if not all(isinstance(item, str) for item in value):
            raise BadPayload(f"{name} is {_shown(value)}")
        return tuple(map(str, value))

    def objects(self, name: str) -> Iterator[PayloadFields]:
        """Yield the objects of a list; none if the field is missing."""
        for item in self.items(name) if name in self.fields else []:
            yield self.part(item, name)

    def part(self, value: JsonLike, name: str) -> PayloadFields:
        """Return the fields of an object in the payload."""
        if not isinstance(value, Mapping):
            raise BadPayload(f"{name} has {_shown(value)}")
        return PayloadFields(value, self.rows, self.accepted)

    def own_place(self, ours: str) -> str:
        """Return the place of the rows: the sink's own, or one allowed by name; `OtherPlace` if it is neither."""
        theirs = self.text(PLACE)
        self._allow(theirs, ours, place_text(theirs) == place_text(ours))
        return theirs

    def own_object(
        self, ours: Mapping[str, JsonLike], is_ours: Callable[[Mapping[str, JsonLike]], bool] | None = None
    ) -> Mapping[str, JsonLike]:
        """Return the place of the rows like `own_place`, for a place that is an object.

        `is_ours` is for a place that may have several names.
        """
        theirs = self.place_like(ours)
        same = place_text(theirs) == place_text(ours) if is_ours is None else is_ours(theirs)
        self._allow(theirs, ours, same)
        return theirs

    def place_like(self, ours: Mapping[str, JsonLike]) -> Mapping[str, JsonLike]:
        """Return the place of the rows, any that has the form of ours."""
        theirs = self._field(PLACE)
        if not isinstance(theirs, Mapping) or theirs.keys() != ours.keys():
            raise BadPayload(f"{PLACE} is {_shown(theirs)}")
        for name, value in theirs.items():
            texts = value if isinstance(value, list) and not isinstance(ours[name], str) else [value]
            if not all(isinstance(text, str) for text in texts):
                raise BadPayload(f"{PLACE} is {_shown(theirs)}")
        return theirs

    def _allow(self, theirs: JsonLike, ours: JsonLike, same: bool) -> None:
        text = place_text(theirs)
        if not same and text not in self.accepted:
            raise OtherPlace(
                f"{self.rows} are for {text}, and their sink writes to {place_text(ours)}; they were not written. Give "
                f"the sink its former target until all is committed; or, if they are to go there, allow it by name: "
                f"accept_places=[{text!r}], or --accept-place of the command"
            )

    def _field(self, name: str) -> JsonLike:
        if name not in self.fields:
            raise BadPayload(f"it has no {name}")
        return self.fields[name]


def read_payload(
    kind: str,
    context: SinkContext,
    transaction: TransactionId,
    payload: CommitPayload,
    read: Callable[[PayloadFields], Read],
) -> Read | CommitAnswer:
    """Return what `read` makes of a payload's fields, or the refusal of a payload that this sink does not commit.

    `read` does nothing but read: it raises `BadPayload`, or another `ValueError`, for fields that the sink never wrote.
    """
    try:
        name = parse_transaction_id(transaction)
        if (name.job, name.sink) != (context.job, context.uid):
            return _refused(f"{transaction!r} is no transaction of sink {context.uid} of job {context.job}")
        if payload.held:
            return _refused(f"the rows of transaction {transaction} wait for a later one")
        return read(_fields(kind, payload, f"the rows of transaction {transaction}", context))
    except (AnotherKind, OtherPlace) as error:
        return _refused(str(error))
    except UNREADABLE_FIELDS as error:
        return _refused(_forged(f"transaction {transaction}", kind, error))


def read_held(kind: str, context: SinkContext, payload: CommitPayload, read: Callable[[PayloadFields], Read]) -> Read:
    """Return what `read` makes of a payload whose rows a sink is to take over; `UnusableOutput` if it is refused."""
    try:
        return read(_fields(kind, payload, "the rows that were held back", context))
    except (AnotherKind, OtherPlace) as error:
        raise UnusableOutput(f"sink {context.uid}: {error}") from None
    except UNREADABLE_FIELDS as error:
        raise UnusableOutput(f"sink {context.uid}: {_forged('rows that were held back', kind, error)}") from error


def _fields(kind: str, payload: CommitPayload, rows: str, context: SinkContext) -> PayloadFields:
    fields = payload.value.value()
    if not isinstance(fields, Mapping):
        raise BadPayload(f"it is {_shown(fields)}")
    made_by = fields.get(MADE_BY)
    if not isinstance(made_by, str) or not made_by.isidentifier():
        raise BadPayload(f"{MADE_BY} is {_shown(made_by)}")
    if made_by != kind:
        raise AnotherKind(
            f"{rows} were prepared by {made_by}, and their sink is {kind} by now, which cannot commit them. Give the "
            f"uid its former sink until all is committed, or drain the job with it, and the new sink a uid of its own"
        )
    return PayloadFields(fields, rows, context.accept_places)


def _forged(what: str, kind: str, error: Exception) -> str:
    return (
        f"what the job's tree says of {what} was not written by {kind}, so nothing was committed: {error}. If the "
        f"tree was changed from outside, put it back"
    )


def for_another_place(transaction: TransactionId, theirs: str, ours: str, advice: str) -> CommitAnswer:
    """Refuse a payload whose rows are for a server that the sink does not reach.

    `advice` says how to tell that it is the same server.
    """
    return _refused(
        f"the rows of transaction {transaction} are for {theirs}, and its sink writes to {ours} by now; they were not "
        f"written there. Give the sink its former target until all is committed; {advice}"
    )


def whole_number(value: JsonLike, name: str, least: int = 0, most: int = _MOST) -> int:
    """Return a whole number in these bounds; `BadPayload` for anything else."""
    if type(value) is not int or not least <= value <= most:
        raise BadPayload(f"{name} is {_shown(value)}")
    return value


def places_in(payload: CommitPayload) -> tuple[str, ...]:
    """Return the places for which a payload has rows, as texts for people; none if the payload names none."""
    value = payload.value.value()
    if not isinstance(value, Mapping):
        return ()
    inner = [one for some in value.values() if isinstance(some, list) for one in some if isinstance(one, Mapping)]
    return tuple(dict.fromkeys(place_text(one[PLACE]) for one in (value, *inner) if PLACE in one))


def place_text(place: JsonLike) -> str:
    """Return the name of a place, as people read and give it; no two places of one kind have the same name."""
    if isinstance(place, str):
        return _SLASHES.sub("", place) if place.isprintable() else json.dumps(place)
    if isinstance(place, Mapping):
        return " ".join(f"{_word(name)}={_word(value)}" for name, value in sorted(place.items()))
    return _word(place)


def _word(value: JsonLike) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(map(_word, value))
    if isinstance(value, str) and value.isprintable() and _BARE.fullmatch(value):
        return value
    return json.dumps(value)


def _shown(value: JsonLike) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _refused(reason: str) -> CommitAnswer:
    return CommitAnswer(CommitOutcome.FAILED, reason)
