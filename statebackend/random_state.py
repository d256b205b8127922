"""Random numbers of keys that are the same wherever and however often the rows of a key are given.

Invariant: the n-th 64 bits that a key draws follow from the operator, the state's name, the key and n alone, and n is
state: it goes back with a roll-back, and goes where its key goes.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random  # noqa: TID251  # for what it makes of bits: it draws none of its own
from typing import Any, ClassVar, Final, NoReturn, Self

from statebackend.entries import delimited
from statebackend.errors import ProgramError
from statebackend.states.declarations import Declaration, Place, ValueState
from statebackend.states.key_context import KeyContext
from statebackend.states.schema import StateSpec
from statebackend.states.ttl import Ttl
from statebackend.states.value_state import CachedState, ValueHandle

_WORD: Final = 64
_OF_A_FLOAT: Final = 53


class SeedIsFixed(ProgramError, TypeError):
    """A function wanted to seed a key's random numbers, or to keep or set their position."""


class KeyedRandom(Random):
    """The random numbers of the current key. It has the methods of `random.Random`, but for `seed` and its like."""

    def __new__(cls, *_: object) -> Self:
        """Make one without a seed."""
        return super().__new__(cls)

    def __init__(self, drawn: ValueHandle[int], context: KeyContext, name: str) -> None:
        self._drawn, self._context = drawn, context
        self._salt = delimited(str(context.uid).encode()) + delimited(name.encode())

    def random(self) -> float:
        """Return a number from 0.0 up to, not including, 1.0."""
        return (self._word() >> _WORD - _OF_A_FLOAT) / (1 << _OF_A_FLOAT)

    def getrandbits(self, k: int, /) -> int:
        """Return a number of `k` random bits."""
        if k < 0:
            raise ValueError(f"a number has 0 bits or more, not {k}")
        words = -(-k // _WORD)
        bits = 0
        for _ in range(words):
            bits = bits << _WORD | self._word()
        return bits >> words * _WORD - k

    def gauss(self, mu: float = 0.0, sigma: float = 1.0) -> float:
        """Return a number of a normal distribution; nothing is kept for the next call, which may be for another key."""
        return self.normalvariate(mu, sigma)

    def _word(self) -> int:
        number = self._drawn.get()
        self._drawn.set(number + 1)
        data = self._salt + delimited(self._context.canonical) + number.to_bytes(8, "big")
        return int.from_bytes(blake2b(data, digest_size=_WORD // 8).digest(), "big")

    def seed(self, a: Any = None, version: int = 2) -> NoReturn:
        """Refuse: the key is the seed."""
        del a, version
        raise SeedIsFixed(f"{self._context.uid}: random numbers of a key are seeded by the key; declare another state")

    def getstate(self) -> NoReturn:
        """Refuse: what a key has drawn is in its state."""
        raise SeedIsFixed(f"{self._context.uid}: how much a key has drawn is state, and nothing that can be kept")

    def setstate(self, state: tuple[Any, ...]) -> NoReturn:
        """Refuse: what a key has drawn is in its state."""
        del state
        raise SeedIsFixed(f"{self._context.uid}: how much a key has drawn is state, and cannot be set")


class RandomHandle(CachedState[int, int]):
    """Random numbers for each key: `random` draws for the current one; `clear` has it begin anew."""

    __slots__ = ("random",)

    methods: ClassVar[str] = "random and clear"

    def __init__(self, drawn: ValueHandle[int], name: str) -> None:
        super().__init__(*drawn.parts())
        self.random: Final = KeyedRandom(drawn, self._context, name)


class RandomState(Declaration[RandomHandle]):
    """Random numbers for each key, which a function of rows draws from `ctx.random`.

        class Sample(KeyedProcess):
            chance = RandomState()

            def on_event(self, event, ctx):
                if ctx.random.random() < 0.01:
                    ctx.emit(event)

    What is guaranteed: the n-th draw of a key is always the same. It follows from the operator's uid, the name of this
    state, the key and n, and how much a key has drawn is state. So rows that are given again after a roll-back, by
    another process or at another parallelism draw what they drew before, if the rows of their key come in the same
    order; whatever rows of other keys, batches, epochs and clocks do. A job that begins anew draws the same again, and
    another uid draws other numbers.

    They are no secret: do not make passwords of them. A draw is a hash and a write of state. With a `ttl` a key that
    has not drawn for so long begins anew with its first numbers. In a call the attribute has `random` and `clear`; a
    function of batches draws with `random` for the key that it has set.
    """

    def __init__(self, *, ttl: Ttl | None = None) -> None:
        self._drawn: ValueState[int] = ValueState(int, default=0, ttl=ttl)

    def spec(self, name: str) -> StateSpec:
        """Return the spec of the value that counts the draws."""
        return self._drawn.spec(name)

    def open(self, place: Place) -> RandomHandle:
        """Open it in one partition."""
        return RandomHandle(self._drawn.open(place), place.spec.stored_as)
