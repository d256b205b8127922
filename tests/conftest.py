"""How far the searches go (profiles), and how far they went."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import settings

from snapshot.testing.simulation import EXPLORED

FACTORS = {"ci": 1, "thorough": 50}
"""How much further than in CI a profile searches; chosen by EPOCHCUT_PROFILE, as `make test PROFILE=thorough` does."""

_PROFILE = os.environ.get("EPOCHCUT_PROFILE", "ci")
if _PROFILE not in FACTORS:
    raise pytest.UsageError(f"there is no profile {_PROFILE!r}; choose one of {', '.join(FACTORS)}")

for _name, _factor in FACTORS.items():
    settings.register_profile(_name, max_examples=100 * _factor, deadline=None, derandomize=_name == "ci")
settings.load_profile(_PROFILE)


@pytest.fixture
def search_factor() -> int:
    """How much further than in CI to search."""
    return FACTORS[_PROFILE]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process that runs a part of the tests says how far it went."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        # As text: numbers of more than 32 bits do not get through.
        output["explored"] = json.dumps([EXPLORED.steps, EXPLORED.histories, sorted(EXPLORED.seen)])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Another process has run its part of the tests."""
    steps, histories, seen = json.loads(getattr(node, "workeroutput", {}).get("explored", "[0, 0, []]"))
    EXPLORED.steps += steps
    EXPLORED.histories += histories
    EXPLORED.seen.update(seen)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the simulations of this run have explored."""
    terminalreporter.write_line(f"explored in simulation: {EXPLORED}")
