"""Local disk and memory keep every promise of a blob store, and what cannot is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.stores.fsspec_store import find_store, known, open_store
from statebackend.stores.memory_store import MemoryStore
from statebackend.stores.store import BadBlobPath, StoreUnavailable, UnsuitableStore, check_path, could_be_ours
from statebackend.testing.blob_race import race_for_one_name
from statebackend.testing.blob_store import CHECKS, OpenStore, check_blob_store

_PLACES = ("plain path", "file://", "memory://")


@pytest.fixture(params=_PLACES)
def open_place(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    uris = (str(tmp_path / "a" / "b"), f"file://{tmp_path}/c", f"memory:/{tmp_path}")
    return partial(open_store, uris[_PLACES.index(request.param)])


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_disk_and_memory_keep_the_promise(check: Callable[[OpenStore], None], open_place: OpenStore) -> None:
    check(open_place)


def test_the_whole_kit_runs_by_one_call(tmp_path: Path) -> None:
    check_blob_store(partial(open_store, str(tmp_path)))


def test_of_32_processes_that_race_200_times_on_a_disk_exactly_one_wins_each_round(tmp_path: Path) -> None:
    report = race_for_one_name(partial(open_store, str(tmp_path)), processes=32, rounds=200)
    assert sum(report.wins) == report.rounds == 200
    assert sum(wins > 0 for wins in report.wins) > 16, "a race in which few can win is none"


def test_two_roots_share_nothing(open_place: OpenStore) -> None:
    first, second = open_place(), open_store("memory://elsewhere")
    first.write("a", b"x")
    assert not second.list()


def test_opening_leaves_nothing_behind(open_place: OpenStore) -> None:
    assert open_place().list() == ()


@pytest.mark.parametrize(
    "uri",
    ["http://host/path", "ftp://host/path", "gs://bucket", "abfs://c@a", "zip::file:///a.zip", "simplecache::s3://b"],
)
def test_a_store_that_is_not_known_to_have_one_creator_is_refused(uri: str) -> None:
    with pytest.raises(UnsuitableStore, match=r"not known to make an object only if it is absent.*use a folder"):
        open_store(uri)


def test_a_test_may_make_a_protocol_known_for_a_while_and_its_stores_are_tried_out_like_all() -> None:
    with known("stand-in", lambda rest: MemoryStore(f"stand-in/{rest}")):
        store = open_store("stand-in://here/and/there")
        store.write("a", b"x")
        assert find_store("stand-in://here/and/there").read("a") == b"x"
        assert find_store("stand-in://elsewhere").list() == ()
        with pytest.raises(ValueError, match="takes no options"):
            open_store("stand-in://here", key="k")
        with pytest.raises(ValueError, match="known already"), known("stand-in", MemoryStore):
            pass
    with pytest.raises(UnsuitableStore):
        open_store("stand-in://here/and/there")


def test_options_that_a_place_does_not_take_are_refused(tmp_path: Path) -> None:
    for uri in (str(tmp_path), "memory://a"):
        with pytest.raises(ValueError, match="takes no options, but got key, secret"):
            open_store(uri, secret="s", key="k")


def test_s3_without_a_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match="names no bucket"):
        open_store("s3://")


def test_s3_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules, "statebackend.stores.s3_store", raising=False)
    with pytest.raises(StoreUnavailable, match=r"needs the package s3fs.*pip install 'epochcut\[s3\]'"):
        open_store("s3://bucket/root")


def test_s3fs_is_not_imported_for_a_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from statebackend.stores.fsspec_store import open_store; "
        f"open_store({str(tmp_path)!r}); print(*(name for name in ('s3fs', 'aiohttp') if sys.modules.get(name)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


_PART = st.text("abcXYZ019_=@+,~.-/\\ :%\n\x00äé", max_size=12)


@given(_PART)
def test_an_accepted_path_stays_below_its_root_and_is_listed_again(path: str) -> None:
    try:
        check_path(path)
    except BadBlobPath:
        assert not could_be_ours(path)
        return
    assert could_be_ours(path)
    assert Path("/root", path).resolve().is_relative_to("/root")
    assert Path("/root", path).relative_to("/root").as_posix() == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "no empty path"),
        ("/a", "relative to the root"),
        ("a//b", "relative to the root"),
        ("a/../b", "may not point elsewhere"),
        ("a/.hidden", "the store's own"),
        ("s3://b", "characters other than"),
        ("x" * 201, "at most 200"),
        ("x/" * 450 + "x", "at most 800"),
    ],
)
def test_a_refused_path_is_told_why(path: str, reason: str) -> None:
    with pytest.raises(BadBlobPath, match=reason):
        check_path(path)
