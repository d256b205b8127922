"""Blobs in S3 and what speaks its language, through s3fs: a create is one conditional put that signs its object.

The put says `If-None-Match: *`, so the server lets one creator of many through. HTTP clients and proxies send a put
again when the connection breaks under it, and a put repeated after it had succeeded is refused because of itself.
So each create writes a nonce into the object's metadata, and a refused one looks whose nonce is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from s3fs import S3FileSystem

from statebackend.stores.store import (
    BlobInfo,
    BlobNotFound,
    BlobStoreError,
    Creation,
    StoreUnavailable,
    UnknownOutcome,
    UnsuitableStore,
    check_folder,
    check_path,
    could_be_ours,
)

_NONCE = "epochcut-creation"
_ONE_REQUEST = 5 << 30
_CHUNK = 16 << 20
_CHUNKS_AT_ONCE = 4
_MOST_CHUNKS = 10_000
_CONFLICT_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The answer of a server that refused a request."""

    status: int
    code: str


class S3Store:
    """A `BlobStore` below a prefix of a bucket. The options are those of `s3fs.S3FileSystem`."""

    def __init__(self, root: str, options: Mapping[str, object]) -> None:
        self.root = root.strip("/")
        fresh = {**options, "use_listings_cache": False, "skip_instance_cache": True}
        config = fresh.get("config_kwargs")
        once = {**(config if isinstance(config, Mapping) else {}), "retries": {"total_max_attempts": 1}}
        try:
            self._files = S3FileSystem(**fresh)
            self._files.connect()
            # One session for both: the description of the service is parsed once, a fifth of a second.
            self._creating = S3FileSystem(**{**fresh, "session": self._files.session, "config_kwargs": once})
            self._creating.connect()
        except Exception as error:
            raise StoreUnavailable(f"could not open {self} with the options given: {error!r}") from error
        self._creating.retries = 1

    def __repr__(self) -> str:
        return f"S3Store({'s3://' + self.root!r})"

    def create(self, path: str, data: bytes) -> Creation:
        """Make the blob if the path is free. See `BlobStore.create`.

        Any failure is an `UnknownOutcome`: a put may have been sent twice below us, so that not even a refused
        connection says that nothing was made.
        """
        key, nonce = self._key(path), token_hex(16)
        for pause in (*_CONFLICT_PAUSES, None):
            try:
                self._creating.pipe_file(key, data, mode="create", chunksize=_ONE_REQUEST, Metadata={_NONCE: nonce})
                return Creation.CREATED
            except Exception as error:
                refusal = _refusal_in(error)
                if refusal.status == 412 or isinstance(error, FileExistsError):
                    return self._whose(path, nonce)
                if refusal.status == 501:
                    raise UnsuitableStore(_no_conditional_put(self, error)) from error
                # A conflict is no answer yet: two creates, or a create and a delete, met inside the server.
                if refusal.status != 409 or pause is None:
                    raise UnknownOutcome(f"whether {path} was created in {self} is unknown: {error!r}") from error
                time.sleep(pause)
        raise AssertionError("the last pause ends the loop")

    def _whose(self, path: str, nonce: str) -> Creation:
        try:
            found = self._files.metadata(self._key(path), refresh=True).get(_NONCE)
        except Exception as error:
            raise UnknownOutcome(
                f"{path} was there already in {self}, but not whether by this very call: {error!r}"
            ) from error
        return Creation.CREATED if found == nonce else Creation.EXISTED

    def write(self, path: str, data: bytes) -> None:
        """Make the blob under a path used for nothing else. See `BlobStore.write`."""
        with self._calling("write", path) as key:
            self._files.pipe_file(key, data, chunksize=_CHUNK, max_concurrency=_CHUNKS_AT_ONCE)

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file into the store, in parts if it is large. See `BlobStore.upload`.

        A crash leaves the parts at the server, unseen, until the bucket's rule for unfinished uploads removes them.
        """
        with self._calling(f"upload {source} as", path) as key:
            chunk = max(_CHUNK, -(-source.stat().st_size // _MOST_CHUNKS))
            self._files.put_file(str(source), key, chunksize=chunk, max_concurrency=_CHUNKS_AT_ONCE)

    def read(self, path: str) -> bytes:
        """Return the whole content, by one request. See `BlobStore.read`."""
        with self._calling("read", path) as key:
            return bytes(self._files.cat_file(key, max_concurrency=1))

    def stat(self, path: str) -> BlobInfo:
        """Return the size. See `BlobStore.stat`."""
        with self._calling("stat", path) as key:
            info: Mapping[str, object] = self._files.info(key, refresh=True)
            return self._blob(path, info)

    def _blob(self, path: str, info: Mapping[str, object]) -> BlobInfo:
        size = info["size"]
        if info["type"] != "file" or not isinstance(size, int):
            raise BlobNotFound(f"there is no {path} in {self}, although there are blobs below it")
        return BlobInfo(path, size)

    def download(self, path: str, target: Path) -> None:
        """Copy the blob into a local file. See `BlobStore.download`."""
        new = target.with_name(f".unfinished-{token_hex(8)}")
        with self._calling(f"download to {target}", path) as key:
            try:
                self._files.get_file(key, str(new), chunksize=_CHUNK, max_concurrency=_CHUNKS_AT_ONCE)
                new.replace(target)
            finally:
                new.unlink(missing_ok=True)

    def list(self, folder: str = "") -> tuple[BlobInfo, ...]:
        """Return all blobs below the folder, sorted by path; never from a cache. See `BlobStore.list`."""
        check_folder(folder)
        bucket, _, prefix = self.root.partition("/")
        above = f"{prefix}/" if prefix else ""
        below = f"{above}{folder}/" if folder else above
        with self._calling("list", folder or "everything"):
            found: Mapping[str, Mapping[str, object]] = self._files.find(
                bucket, prefix=below, detail=True, refresh=True
            )
        paths = {name.removeprefix(f"{bucket}/{above}"): info for name, info in found.items()}
        return tuple(sorted(self._blob(path, info) for path, info in paths.items() if could_be_ours(path)))

    def delete(self, path: str) -> None:
        """Make sure that there is no such blob. See `BlobStore.delete`."""
        try:
            with self._calling("delete", path) as key:
                self._files.rm_file(key)
        except BlobNotFound:
            return

    def remove_leftovers(self) -> int:
        """Do nothing: the bucket's own rule removes unfinished uploads. See `BlobStore.remove_leftovers`."""
        return 0

    def _key(self, path: str) -> str:
        check_path(path)
        return f"{self.root}/{path}"

    @contextmanager
    def _calling(self, action: str, path: str) -> Iterator[str]:
        try:
            yield self._key(path)
        except BlobStoreError:
            raise
        # What can come out of s3fs, aiobotocore, aiohttp and asyncio has no common ancestor below this.
        except Exception as error:
            if isinstance(error, FileNotFoundError) and _refusal_in(error).code != "NoSuchBucket":
                raise BlobNotFound(f"there is no {path} in {self}") from error
            raise StoreUnavailable(f"could not {action} {path} in {self}: {error!r}") from error


def _refusal_in(error: BaseException) -> _Refusal:
    """Return the server's own words, which s3fs translates and keeps as the cause; status 0 if it did not answer."""
    response = getattr(error.__cause__ or error, "response", None)
    if not isinstance(response, dict):
        return _Refusal(0, "")
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _Refusal(int(status), str(response.get("Error", {}).get("Code", "")))


def _no_conditional_put(store: S3Store, error: Exception) -> str:
    return (
        f"{store} does not know conditional puts (If-None-Match), without which two creators of one object cannot "
        f"be told apart: {error!r}; use a server that knows them, such as AWS S3, MinIO or Versity"
    )
