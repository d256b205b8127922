"""The `recovery` command run in the test's own process: what it printed, and how it ended."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from recovery.command.main import main


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The standard output as JSON."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The standard output as JSON, line by line."""
        return [json.loads(line) for line in self.out.splitlines()]


def run_command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Printed:
    """Run it."""
    capsys.readouterr()
    try:
        code = int(main([str(argument) for argument in arguments]))
    except SystemExit as end:  # of argparse
        code = int(end.code or 0)
    printed = capsys.readouterr()
    return Printed(code, printed.out, printed.err)
