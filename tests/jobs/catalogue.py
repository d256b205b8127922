"""All jobs with a known output, by name."""

from __future__ import annotations

from typing import Final

from tests.jobs.controlled import CONTROLLED
from tests.jobs.job import Job
from tests.jobs.merges import MERGES
from tests.jobs.numbered import NUMBERED
from tests.jobs.running import MANY_KEYS, RUNNING
from tests.jobs.sequences import SEQUENCES
from tests.jobs.skewed import SKEWED
from tests.jobs.windows import SESSIONS, TUMBLING

_ALL: Final = (TUMBLING, SEQUENCES, MERGES, CONTROLLED, RUNNING, MANY_KEYS, SESSIONS, SKEWED, NUMBERED)

JOBS: Final[dict[str, Job]] = {job.name: job for job in _ALL}
