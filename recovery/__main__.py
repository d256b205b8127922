"""The `recovery` command as `python -m recovery`."""

from __future__ import annotations

import sys

from recovery.command.main import main

if __name__ == "__main__":
    sys.exit(main())
