"""The description of a run for people: its program's stages, and its options without secrets.

Invariant: the value of a secret is in no description; only that there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Final

from recovery.driver.settings.job import JobSettings
from recovery.driver.settings.options import Options
from recovery.events import Described, DescribedOption, DescribedStage
from snapshot.program.explain import described
from snapshot.program.plan import Plan
from statebackend import means

_UNTOLD: Final = ("web_token", "storage_options", "tls")
"""Options whose values are secret."""


def describe(settings: JobSettings) -> Described:
    """Return the description of a run that begins now."""
    place = DescribedOption("checkpoints", settings.store, given=True)
    scheme = DescribedOption("scheme", repr(settings.scheme), given=True)
    return Described(
        at=means.wall(),
        job=settings.job,
        scheme=type(settings.scheme).__name__,
        parallelism=settings.parallelism,
        stages=tuple(_stages(settings.plan)),
        options=(place, scheme, *_options(settings.options)),
    )


def _stages(plan: Plan) -> Iterator[DescribedStage]:
    for stage in plan.stages:
        title, lines, inputs = described(stage)
        yield DescribedStage(stage.uid, title, tuple(lines), tuple(inputs))


def _options(options: Options) -> Iterator[DescribedOption]:
    """Give all options, those of epochs and of partitions among them."""
    usual = Options()
    for part, default in ((options, usual), (options.coordinator, usual.coordinator), (options.host, usual.host)):
        values = {one.name: getattr(part, one.name) for one in fields(part)}
        defaults = {one.name: getattr(default, one.name) for one in fields(default)}
        yield from _told({name: value for name, value in values.items() if not is_dataclass(value)}, defaults)


def _told(values: Mapping[str, object], defaults: Mapping[str, object]) -> Iterator[DescribedOption]:
    for name, value in values.items():
        shown = "(not shown)" if name in _UNTOLD and value else str(value)
        yield DescribedOption(name, shown, value != defaults.get(name))
