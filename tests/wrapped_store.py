"""A store that passes everything on to another, for tests that make some of its calls late, counted or faulty."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from statebackend.stores.store import BlobInfo, BlobStore, Creation


class WrappedStore:
    """A `BlobStore` that counts its calls by name, and remembers which blobs were fetched and deleted."""

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self.calls: Counter[str] = Counter()
        self.fetched: list[str] = []
        self.deleted: list[str] = []

    def create(self, path: str, data: bytes) -> Creation:
        self.calls["create"] += 1
        return self.store.create(path, data)

    def write(self, path: str, data: bytes) -> None:
        self.calls["write"] += 1
        self.store.write(path, data)

    def read(self, path: str) -> bytes:
        self.calls["read"] += 1
        self.fetched.append(path)
        return self.store.read(path)

    def stat(self, path: str) -> BlobInfo:
        self.calls["stat"] += 1
        return self.store.stat(path)

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        self.calls["list"] += 1
        return self.store.list(folder)

    def delete(self, path: str) -> None:
        self.calls["delete"] += 1
        self.deleted.append(path)
        self.store.delete(path)

    def remove_leftovers(self) -> int:
        return self.store.remove_leftovers()

    def upload(self, source: Path, path: str) -> None:
        self.calls["upload"] += 1
        self.store.upload(source, path)

    def download(self, path: str, target: Path) -> None:
        self.calls["download"] += 1
        self.fetched.append(path)
        self.store.download(path, target)
