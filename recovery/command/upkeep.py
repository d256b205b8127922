"""`recovery verify`, `gc` and `dispose`: whether a tree is sound, and taking away what is not needed.

Invariant: `verify` writes nothing; what the others would do is shown by --dry-run, with nothing done.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from recovery.command.arguments import Progress, Verbs, add_job_folder, add_tree, add_verb, amount, in_lines, show
from recovery.command.exits import FoundDamage
from recovery.offline.job_tree import open_tree
from recovery.savepoints.disposal import Disposed, dispose
from recovery.savepoints.gc import (
    Cleaned,
    CleanupPlan,
    clean_up,
    plan_cleanup,
    plan_take_over,
    take_over_and_plan,
)
from recovery.savepoints.verifying import Verified, verify, what_to_verify

_VERIFY = """example:
  $ recovery verify --checkpoints /data/clicks
  job clicks-5f0c21aa: 2 epochs, 63 files, 841 MB, 1,000,000 rows of state
  sound: 17-1, 212-2
"""

_GC = """example:
  $ recovery gc --checkpoints /data/clicks --dry-run
  would delete 3 files, 2.6 MB: left by attempts that are over, or uploaded in vain; no epoch can name them
  66 files, 841 MB, are needed; 4 files may be of an epoch in flight
"""

_DISPOSE = """example:
  $ recovery dispose --checkpoints /data/clicks --epoch 17
  savepoint 17-1 is no longer pinned; the running job removes it when it completes an epoch
"""


def add_to(verbs: Verbs) -> None:
    """Add the verbs."""
    checked = add_verb(verbs, "verify", "check every checksum, every reference and every key", _VERIFY, _verify)
    add_tree(checked)
    checked.add_argument("--epoch", metavar="EPOCH", help="only this one (all that the job could come back to)")
    checked.add_argument("--no-keys", action="store_true", help="do not open the state to hash every key anew")
    checked.add_argument(
        "--scratch", metavar="FOLDER", type=Path, help="a local folder with room for a partition's state"
    )
    cleaned = add_verb(verbs, "gc", "delete files without a reference, also beside a running job", _GC, _gc)
    add_tree(cleaned)
    cleaned.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
    cleaned.add_argument(
        "--take-over", action="store_true",
        help="of a job that does not run, also what it left of unfinished epochs, and all epochs but the newest and "
        "the savepoints",
    )  # fmt: skip
    add_job_folder(cleaned)
    disposed = add_verb(verbs, "dispose", "let a savepoint go", _DISPOSE, _dispose)
    add_tree(disposed)
    disposed.add_argument("--epoch", required=True, metavar="EPOCH", help="newest-savepoint, 17 or 17-2")
    disposed.add_argument("--dry-run", action="store_true", help="only say which pins would be lifted")
    disposed.add_argument("--readers", action="store_true", help="lift the pins that readers have left, and no others")


def _verify(arguments: argparse.Namespace) -> None:
    tree = open_tree(arguments.checkpoints)
    todo = what_to_verify(tree, arguments.epoch)
    with Progress("verifying", todo.bytes) as progress:
        found = verify(tree, todo, keys=not arguments.no_keys, scratch=arguments.scratch, seen=progress.more)
    show(found, _verified_in_words(found), as_json=arguments.json)
    if found.damages:
        count = len(found.damages)
        raise FoundDamage("1 damage was found" if count == 1 else f"{count} damages were found")


def _gc(arguments: argparse.Namespace) -> None:
    tree = open_tree(arguments.checkpoints)
    if not arguments.take_over:
        plan = plan_cleanup(tree)
    elif arguments.dry_run:
        plan = plan_take_over(tree, arguments.job_folder)
    else:
        plan = take_over_and_plan(tree, arguments.job_folder)
    if arguments.dry_run:
        show(plan, _plan_in_words(plan), as_json=arguments.json)
        return
    with Progress("deleting", len(plan.doomed), "files") as progress:
        done = clean_up(tree, plan, lambda _: progress.more(1))
    show(done, _cleaned_in_words(done, plan), as_json=arguments.json)


def _dispose(arguments: argparse.Namespace) -> None:
    tree = open_tree(arguments.checkpoints)
    done = dispose(tree, arguments.epoch, readers=arguments.readers, dry_run=arguments.dry_run)
    show(done, _disposed_in_words(done, dry_run=arguments.dry_run), as_json=arguments.json)


def _verified_in_words(found: Verified) -> str:
    rows = f", {found.rows:,} rows of state" if found.rows else ""
    lines = [f"job {found.job}: {found.epochs} epochs, {found.files} files, {amount(found.bytes)}{rows}"]
    for damage in found.damages:
        lines.append(f"damaged: {damage.what}: {damage.detail}; not to be restored: {_listed(damage.epochs)}")
    lines.append(f"sound: {_listed(found.sound) or 'none'}")
    if found.doubtful:
        lines.append(
            f"epoch {_listed(found.doubtful)} has a manifest and no entry in the journal: its driver enters it just "
            "now, or died before it did; if the journal may have lost its newest entries: recovery repair "
            "--entries-lost --dry-run"
        )
    return in_lines(lines)


def _plan_in_words(plan: CleanupPlan) -> str:
    lines = [f"would let epochs {_listed(plan.lets_go)} go"] if plan.lets_go else []
    counts = Counter(file.why for file in plan.doomed)
    for why, count in counts.items():
        size = sum(file.size for file in plan.doomed if file.why is why)
        lines.append(f"would delete {count} files, {amount(size)}: {why.value}")
    return in_lines([*(lines or ["there is nothing to delete"]), *_kept_in_words(plan)])


def _cleaned_in_words(done: Cleaned, plan: CleanupPlan) -> str:
    leftovers = f", and {done.leftovers} that writers had left unfinished" if done.leftovers else ""
    gone = [f"let epochs {_listed(done.let_go)} go"] if done.let_go else []
    deleted = f"deleted {done.files} files, {amount(done.bytes)}{leftovers}"
    return in_lines([*gone, deleted, *_kept_in_words(plan)])


def _kept_in_words(plan: CleanupPlan) -> list[str]:
    kept = f"{plan.needed} files, {amount(plan.needed_bytes)}, are needed"
    if plan.in_flight_possible:
        kept += f"; {plan.in_flight_possible} files may be of an epoch in flight"
    if plan.unexplained:
        kept += f"; {plan.unexplained} files may be of an epoch that cannot be read"
    lines = [kept]
    if plan.foreign:
        lines.append(f"{len(plan.foreign)} files are not ours and stay, such as {plan.foreign[0]}")
    lines += [f"epoch {pin.epoch} is pinned by reader {pin.pin}; if none runs: recovery dispose --readers --epoch "
              f"{pin.epoch}" for pin in plan.pinned_by_readers]  # fmt: skip
    return lines


def _disposed_in_words(done: Disposed, *, dry_run: bool) -> str:
    verb = "would no longer be" if dry_run else "is no longer"
    pins = _listed(done.pins)
    if done.left:
        return f"epoch {done.epoch} {verb} pinned by {pins}; it stays, as {_listed(done.left)} keeps it"
    then = (
        "the running job removes it when it completes an epoch" if done.runs else "recovery gc --take-over removes it"
    )
    return f"epoch {done.epoch} {verb} pinned ({pins}); {then}"


def _listed(epochs: tuple[object, ...]) -> str:
    return ", ".join(map(str, epochs))
