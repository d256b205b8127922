"""A process that a test starts does without the modules that are hidden from the test; see `tests/extras.py`.

Python imports this module when it starts, if its folder is on the path.
"""

import os
import sys

for _name in os.environ.get("EPOCHCUT_HIDDEN_MODULES", "").split():
    sys.modules[_name] = None  # type: ignore[assignment]  # what the import system takes for "not there"
