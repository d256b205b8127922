"""The conformance kit for blob stores: every promise of `BlobStore` as a check that a store without it fails.

`check_blob_store(open)` runs all of `CHECKS`; with pytest, parametrize over `CHECKS` to have one test for each.
`race_for_one_name` lets operating system processes race, as drivers do. A check that fails raises `BrokenPromise`.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_bytes, token_hex

from statebackend.stores.store import BadBlobPath, BlobInfo, BlobNotFound, BlobStore, Creation

OpenStore = Callable[[], BlobStore]
"""Opens the store anew at the same place each time. The place need not be empty: every check has its own folder."""

THREADS = 8
LONG_LISTING = 1_100
LARGE = 33 << 20
READ_MEANWHILE = 300_000


class BrokenPromise(AssertionError):
    """A store did not do what `BlobStore` promises; the message names the promise."""


def check_blob_store(open_store: OpenStore) -> None:
    """Check every promise; `BrokenPromise` names the first that is broken."""
    for check in CHECKS:
        check(open_store)


def _promised(kept: bool, promise: str, seen: object) -> None:
    if not kept:
        raise BrokenPromise(f"{promise}; but: {seen!r}"[:500])


def _folder() -> str:
    return f"check-{token_hex(8)}"


def a_created_blob_is_seen_at_once(open_store: OpenStore) -> None:
    """Check that a create is read, measured and listed by others as soon as it returns."""
    _seen_at_once(open_store, lambda store, path, data: _expect(store, path, data, Creation.CREATED))


def a_written_blob_is_seen_at_once(open_store: OpenStore) -> None:
    """Check that a write is read, measured and listed by others as soon as it returns."""
    _seen_at_once(open_store, lambda store, path, data: store.write(path, data))


def _seen_at_once(open_store: OpenStore, make: Callable[[BlobStore, str, bytes], None]) -> None:
    writer, reader, folder = open_store(), open_store(), _folder()
    made: list[BlobInfo] = []
    for number, data in enumerate((b"one", b"", token_bytes(100_000))):
        path = f"{folder}/{number}"
        make(writer, path, data)
        made.append(BlobInfo(path, len(data)))
        found = reader.read(path)
        _promised(found == data, "a blob is read as it was made", (path, len(found), len(data)))
        _promised(reader.stat(path) == made[-1], "a blob has its size", reader.stat(path))
        listed = list(reader.list(folder))
        _promised(listed == made, "a blob is listed as soon as it is made", listed)


def _expect(store: BlobStore, path: str, data: bytes, answer: Creation) -> None:
    given = store.create(path, data)
    _promised(given is answer, f"a create of a path that is {answer.value} says so", given)


def a_second_create_is_told_and_changes_nothing(open_store: OpenStore) -> None:
    """Check that a second creator is told, even with the same content, and the first content stays."""
    first, second, path = open_store(), open_store(), f"{_folder()}/entry"
    _expect(first, path, b"first", Creation.CREATED)
    for store in (second, first):
        for data in (b"second", b"first"):
            _expect(store, path, data, Creation.EXISTED)
    _promised(second.read(path) == b"first", "the first creator's content stays", second.read(path))


def a_write_may_be_repeated(open_store: OpenStore) -> None:
    """Check that a write that is done again, as after an error, is harmless."""
    store, path = open_store(), f"{_folder()}/file"
    store.write(path, b"same")
    store.write(path, b"same")
    _promised(store.read(path) == b"same", "a repeated write is harmless", store.read(path))
    _expect(store, path, b"other", Creation.EXISTED)


def a_listing_is_deep_and_sorted(open_store: OpenStore) -> None:
    """Check that a listing has all below the folder, at any depth, sorted by the whole path; nothing of its sibling."""
    store, folder = open_store(), _folder()
    inside = sorted(f"{folder}/in/{name}" for name in ("b", "a/z", "a.b", "a-b", "a/b/c", "B", "10", "9"))
    outside = [f"{folder}/in-side", f"{folder}/in.x/y", f"{folder}/other/z"]
    for path in (*reversed(inside), *outside):
        store.write(path, b"x")
    listed = [info.path for info in store.list(f"{folder}/in")]
    _promised(listed == inside, "a listing is all below the folder, sorted by path", listed)
    below_root = [info.path for info in store.list() if info.path.startswith(folder)]
    _promised(below_root == sorted(inside + outside), "the root lists everything", below_root)


def a_long_listing_is_whole(open_store: OpenStore) -> None:
    """Check that a listing does not end at what the store gives at once."""
    store, folder = open_store(), _folder()
    paths = [f"{folder}/{number:05}" for number in range(LONG_LISTING)]
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda path: store.write(path, b"x"), paths))
        listed = [info.path for info in store.list(folder)]
        list(threads.map(store.delete, paths))
    _promised(listed == paths, f"a listing of {LONG_LISTING} is whole", f"{len(listed)} listed")
    left = store.list(folder)
    _promised(not left, "what is deleted is not listed", left)


def a_deleted_blob_is_gone(open_store: OpenStore) -> None:
    """Check that a deletion is seen by others at once, may be repeated, and frees the path."""
    store, other, path = open_store(), open_store(), f"{_folder()}/file"
    store.delete(path)
    _expect(store, path, b"first", Creation.CREATED)
    other.list(path.split("/")[0])
    store.delete(path)
    store.delete(path)
    _is_absent(other, path)
    _expect(other, path, b"again", Creation.CREATED)


def a_missing_blob_is_not_found(open_store: OpenStore) -> None:
    """Check that missing blobs, the folder of other blobs too, are not found; a missing folder is empty."""
    store, folder = open_store(), _folder()
    _is_absent(store, f"{folder}/missing")
    _promised(not store.list(folder), "a missing folder is empty", store.list(folder))
    store.write(f"{folder}/a/b", b"x")
    _is_absent(store, f"{folder}/a")
    _is_absent(store, f"{folder}/a/b/c")
    _promised(not store.list(f"{folder}/a/b"), "a blob is no folder", store.list(f"{folder}/a/b"))


def _is_absent(store: BlobStore, path: str) -> None:
    with tempfile.TemporaryDirectory() as local:
        target = Path(local, "target")
        calls: tuple[Callable[[], object], ...] = (
            partial(store.read, path),
            partial(store.stat, path),
            partial(store.download, path, target),
        )
        for call in calls:
            try:
                seen: object = call()
            except BlobNotFound:
                continue
            raise BrokenPromise(f"{path} is not there, so that BlobNotFound is raised; but: {seen!r}")
        left = list(Path(local).iterdir())
    _promised(not left, "a download of nothing leaves nothing", left)
    listed = [info.path for info in store.list(path.rpartition("/")[0])]
    _promised(path not in listed, "what is not there is not listed", listed)


def a_large_file_goes_up_and_down(open_store: OpenStore) -> None:
    """Upload and download files byte for byte, whatever their size; a download replaces its target."""
    store, folder = open_store(), _folder()
    with tempfile.TemporaryDirectory() as local:
        source, target = Path(local, "source"), Path(local, "target")
        for size in (0, 1, 70_000, LARGE + 7):
            content = (token_bytes(1_000_003) * (size // 1_000_003 + 1))[:size]
            source.write_bytes(content)
            path = f"{folder}/{size}.sst"
            store.upload(source, path)
            store.download(path, target)
            _promised(target.read_bytes() == content, f"a file of {size} bytes goes up and down", path)
            _promised(store.stat(path).size == size, f"a file of {size} bytes has its size", store.stat(path))
            left = sorted(file.name for file in Path(local).iterdir())
            _promised(left == ["source", "target"], "up and down leave nothing beside the files", left)
            store.delete(path)


def paths_that_point_elsewhere_are_refused(open_store: OpenStore) -> None:
    """Check that every call refuses a path that no store or not every store could hold."""
    store = open_store()
    elsewhere = ("", "/etc/passwd", "..", "a/../../b", "./a", "a//b", "a/", "s3://b/c", "a\\b", "a b", "ä", ".a", "a\n")
    with tempfile.TemporaryDirectory() as local:
        file = Path(local, "file")
        file.write_bytes(b"x")
        for path in (*elsewhere, "x" * 201, "x/" * 500 + "x"):
            calls: tuple[Callable[[], object], ...] = (
                partial(store.create, path, b"x"),
                partial(store.write, path, b"x"),
                partial(store.read, path),
                partial(store.stat, path),
                partial(store.delete, path),
                partial(store.upload, file, path),
                partial(store.download, path, file),
                *([partial(store.list, path)] if path else []),
            )
            for call in calls:
                _is_refused(call, path)


def _is_refused(call: Callable[[], object], path: str) -> None:
    try:
        call()
    except BadBlobPath as error:
        _promised(bool(str(error)), "a refusal says why", error)
        return
    raise BrokenPromise(f"the path {path[:80]!r} is refused with BadBlobPath; but it was taken")


def of_racing_threads_one_wins(open_store: OpenStore) -> None:
    """Let threads create the same paths at the same time: one is told that it did, all others that they did not."""
    store, folder, start = open_store(), _folder(), threading.Barrier(THREADS)

    def race(path: str, thread: int) -> Creation:
        start.wait()
        return store.create(path, b"%d" % thread)

    with ThreadPoolExecutor(THREADS) as threads:
        for number in range(50):
            path = f"{folder}/{number}"
            answers = list(threads.map(partial(race, path), range(THREADS)))
            _promised(answers.count(Creation.CREATED) == 1, "of racing creators exactly one wins", answers)
            winner = b"%d" % answers.index(Creation.CREATED)
            _promised(store.read(path) == winner, "the winner's content is kept", (store.read(path), winner))


def a_blob_is_whole_or_absent(open_store: OpenStore) -> None:
    """Read while others make a blob: the whole of it is found or nothing; so in listings."""
    store, reader, folder = open_store(), open_store(), _folder()
    whole = token_bytes(READ_MEANWHILE)
    done = threading.Event()

    def make() -> None:
        try:
            for number in range(20):
                store.create(f"{folder}/{number}", whole)
                store.write(f"{folder}/{number}w", whole)
        finally:
            done.set()

    with ThreadPoolExecutor(1) as threads:
        making = threads.submit(make)
        while not done.is_set():
            for number in range(20):
                for path in (f"{folder}/{number}", f"{folder}/{number}w"):
                    with suppress(BlobNotFound):
                        _promised(reader.read(path) == whole, "a blob is never seen cut short", path)
            cut = [info for info in reader.list(folder) if info.size != len(whole)]
            _promised(not cut, "a blob is never listed before it is whole", cut)
        making.result()


CHECKS: tuple[Callable[[OpenStore], None], ...] = (
    a_created_blob_is_seen_at_once,
    a_written_blob_is_seen_at_once,
    a_second_create_is_told_and_changes_nothing,
    a_write_may_be_repeated,
    a_listing_is_deep_and_sorted,
    a_long_listing_is_whole,
    a_deleted_blob_is_gone,
    a_missing_blob_is_not_found,
    a_large_file_goes_up_and_down,
    paths_that_point_elsewhere_are_refused,
    of_racing_threads_one_wins,
    a_blob_is_whole_or_absent,
)
"""Every promise of `BlobStore`, in the order in which it helps to know that it is broken."""
