"""`recovery page` and `report`: a job in a browser, whether it runs or not, and all of that in one file to send.

Invariant: the job is only looked at, unless --allow-actions lets the page ask it for savepoints or for its end; then a
token is needed in any case, as all users of a host reach its loopback.
"""

from __future__ import annotations

import argparse
import os
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_urlsafe
from threading import Event
from typing import Final

from recovery.command.arguments import Verbs, add_tree, add_verb, amount, show
from recovery.command.exits import WrongUsage
from recovery.telemetry.html_report import report
from recovery.telemetry.past_job import EVENTS, PastJob
from recovery.telemetry.server import Endpoint, WebServer
from recovery.waiting import wait_in_pieces

TOKEN: Final = "EPOCHCUT_WEB_TOKEN"
"""The variable with the token that callers of the page need; other users of the host would read an argument."""
_PAGE: Final = """example:
  $ recovery page --checkpoints /data/clicks
  clicks-5f0c21aa is shown at http://127.0.0.1:4050/ until Ctrl-C
  $ recovery page --checkpoints /data/clicks --allow-actions
  clicks-5f0c21aa is shown at http://127.0.0.1:4050/?token=... until Ctrl-C
"""

_REPORT: Final = """example:
  $ recovery report --checkpoints /data/clicks --out report.html
  report.html (812 kB): clicks-5f0c21aa, 1000 epochs, 3 recoveries
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A page that is there now."""

    job: str
    url: str


def add_to(verbs: Verbs) -> None:
    """Add the verbs."""
    page = add_verb(verbs, "page", "show a job to a browser, also one that is stopped", _PAGE, _page)
    _add_job(page)
    page.add_argument(
        "--listen",
        metavar="ADDRESS",
        default="127.0.0.1:4050",
        help=f"where; an address that other hosts reach needs a token in ${TOKEN} (%(default)s)",
    )
    page.add_argument("--certificate", metavar="FILE", type=Path, help="of the host, as PEM: then https is spoken")
    page.add_argument("--key", metavar="FILE", type=Path, help="of that certificate")
    page.add_argument(
        "--allow-actions",
        action="store_true",
        help=f"let the page take savepoints and stop the job; with a token, that of ${TOKEN} or a new one",
    )
    written = add_verb(verbs, "report", "write what is known of a job into one file for browsers", _REPORT, _report)
    _add_job(written)
    written.add_argument("--out", metavar="FILE", type=Path, required=True, help="the file, which is replaced")


def _add_job(parser: argparse.ArgumentParser) -> None:
    add_tree(parser)
    parser.add_argument(
        "--job-folder", metavar="FOLDER", type=Path, help="the folder for its files, if it has another (`local`)"
    )
    parser.add_argument(
        "--events", metavar="FILE", type=Path, help=f"its file of events ({EVENTS} in the folder for its files)"
    )


def _page(arguments: argparse.Namespace) -> None:
    given = os.environ.get(TOKEN, "")
    token = given or (token_urlsafe() if arguments.allow_actions else "")
    endpoint = Endpoint.of("--listen", arguments.listen, token, f"${TOKEN}")
    if (arguments.certificate is None) != (arguments.key is None):
        raise WrongUsage("--certificate and --key belong together; give both or none")
    if arguments.certificate is not None:
        endpoint = endpoint.encrypted(arguments.certificate, arguments.key)
    job = PastJob(
        arguments.checkpoints,
        folder=arguments.job_folder,
        events=arguments.events,
        actions=arguments.allow_actions,
    )
    with closing(job), closing(WebServer(endpoint, "/")) as server:
        server.begin(job.routes, job.orders)
        url = server.url if token == given else f"{server.url}?token={token}"
        show(Shown(job.job, url), f"{job.job} is shown at {url} until Ctrl-C", as_json=arguments.json)
        with suppress(KeyboardInterrupt):
            wait_in_pieces(Event().wait)


def _report(arguments: argparse.Namespace) -> None:
    done = report(arguments.checkpoints, arguments.out, job_folder=arguments.job_folder, events=arguments.events)
    text = f"{done.file} ({amount(done.bytes)}): {done.job}, {done.epochs} epochs, {done.recoveries} recoveries"
    show(done, text, as_json=arguments.json)
