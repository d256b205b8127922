"""A folder of a bucket: a file is staged as an upload in parts, and appears when the upload is completed.

Invariant: an upload gives its object a nonce, so that a process that completes it, or is told that there is no such
upload, finds out from the object whether it was this upload that made it. What a server says of a completion is not
believed without that: one that was repeated, or met another, may be answered before the object is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Final, TypeAlias

import pyarrow as pa
from fsspec.config import conf
from s3fs import S3FileSystem

from snapshot.connectors.files.folder import Published, StagedFile
from snapshot.connectors.staging.payloads import BadPayload, PayloadFields
from snapshot.tree.frozen_json import Json, JsonLike

_NONCE: Final = "epochcut-upload"
_UPLOADS: Final = re.compile(r"(?!\.{1,2}\Z)[!-.0-~]{1,255}")
"""Ids of uploads as all known servers give them; to one that keeps files under them, they lead nowhere else."""
_NONCES: Final = re.compile(r"[0-9a-f]{32}")
_PART: Final = 16 << 20
"""Bytes of a part; servers want 5 MiB at least, but for the last one."""
_MOST_PARTS: Final = 10_000
_GONE: Final = {"NoSuchUpload", "NoSuchKey", "404"}
_OTHER_PARTS: Final = {"InvalidPart", "InvalidPartOrder", "MalformedXML"}
"""The codes with which a server refuses parts that it does not have; asking again does not help."""
_CONFIG: Final[Mapping[str, object]] = {
    "connect_timeout": 3,
    "retries": {"mode": "standard", "total_max_attempts": 3},
}
"""Short: a commit is tried again by its caller, and what cannot be staged now goes with the next epoch."""

_Response: TypeAlias = Mapping[str, object]


class S3Folder:
    """The folder at a URI `s3://<bucket>/<prefix>`, with the options of storage that this process was given."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._bucket, _, prefix = uri.partition("://")[2].strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        given = conf.get("s3", {}).get("config_kwargs", {})
        self._files = S3FileSystem(config_kwargs={**_CONFIG, **given}, use_listings_cache=False)
        self._files.retries = 1

    def problems(self) -> Sequence[str]:
        """Return why the uploads in the bucket cannot be listed, as a recovery will list them."""
        try:
            for _ in self._uploads():
                break
        except Exception as error:
            advice = _ADVICE.get(_code_of(error), "S3 does not answer as it should")
            return [f"files cannot be written to {self._uri}: {advice} ({error})"]
        return []

    def stage(self, name: str, data: pa.Buffer) -> StagedFile:
        """Upload the file in parts, without completing the upload.

        A crash leaves an upload that `leftovers` finds.
        """
        nonce = token_hex(16)
        upload = str(self._call("create_multipart_upload", name, Metadata={_NONCE: nonce})["UploadId"])
        if not _UPLOADS.fullmatch(upload):
            raise OSError(f"S3 gave the upload of {name} the id {upload!r}, which would not be believed at its commit")
        try:
            parts = self._upload_parts(name, upload, memoryview(data))
        except BaseException:
            with suppress(Exception):  # recovery does it if it cannot be done now
                self._call("abort_multipart_upload", name, UploadId=upload)
            raise
        return StagedFile(name, Json.of({"upload": upload, "nonce": nonce, "parts": parts}))

    def _upload_parts(self, name: str, upload: str, data: memoryview) -> list[JsonLike]:
        size = max(_PART, -(-len(data) // _MOST_PARTS))
        parts: list[JsonLike] = []
        for number, start in enumerate(range(0, len(data), size), start=1):
            body = bytes(data[start : start + size])
            sent = self._call("upload_part", name, UploadId=upload, PartNumber=number, Body=body)
            parts.append({"PartNumber": number, "ETag": str(sent["ETag"])})
        return parts

    def publish(self, files: Sequence[StagedFile]) -> Published:
        """Complete the uploads; files whose object does not have the nonce of the upload are missing.

        Raises `OSError` for a file that the server calls complete and does not show yet.
        """
        tickets = [_Ticket.of(file) for file in files]
        completed = [self._complete(file.name, ticket) for file, ticket in zip(files, tickets, strict=True)]
        missing = []
        for file, ticket, was_there in zip(files, tickets, completed, strict=True):
            if self._nonce_of(file.name) == ticket.nonce:
                continue
            if was_there:
                raise OSError(f"S3 says that {file.name} is complete, but it is not there yet")
            missing.append(file.name)
        return Published(missing, already=not any(completed))

    def _complete(self, name: str, ticket: _Ticket) -> bool:
        """Complete the upload and return True; False if it was completed before or is gone.

        A server forgets a completed upload after some time.
        """
        try:
            parts = {"Parts": ticket.parts}
            self._call("complete_multipart_upload", name, UploadId=ticket.upload, MultipartUpload=parts)
        except Exception as error:
            # A server that died while it completed may have made the object, and know an upload without parts.
            if _code_of(error) in _GONE or self._nonce_of(name) == ticket.nonce:
                return False
            if _code_of(error) in _OTHER_PARTS:
                raise BadPayload(f"the parts of {name} are not those that were uploaded: {error}") from error
            raise
        return True

    def _nonce_of(self, name: str) -> str | None:
        try:
            metadata = self._call("head_object", name)["Metadata"]
        except Exception as error:
            if _code_of(error) in _GONE:
                return None
            raise
        return metadata.get(_NONCE) if isinstance(metadata, dict) else None

    def leftovers(self, may_go: Callable[[str], bool]) -> Sequence[StagedFile]:
        """Return the uploads that are not completed and whose names may go."""
        return [file for file in self._uploads() if may_go(file.name)]

    def _uploads(self) -> Iterator[StagedFile]:
        marker: dict[str, object] = {}
        while True:
            page = self._files.call_s3("list_multipart_uploads", Bucket=self._bucket, Prefix=self._prefix, **marker)
            for upload in page.get("Uploads", ()):
                name = str(upload["Key"]).removeprefix(self._prefix)
                yield StagedFile(name, Json.of({"upload": str(upload["UploadId"])}))
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def drop(self, file: StagedFile) -> None:
        """Abort the upload of a file, unless it is gone."""
        try:
            self._call("abort_multipart_upload", file.name, UploadId=_ticket_of(file).text("upload"))
        except Exception as error:
            if _code_of(error) not in _GONE:
                raise

    def _call(self, method: str, name: str, **arguments: object) -> _Response:
        answer: _Response = self._files.call_s3(method, Bucket=self._bucket, Key=self._prefix + name, **arguments)
        return answer


_ADVICE: Final = {
    "NoSuchBucket": "there is no such bucket; make it",
    "InvalidAccessKeyId": "S3 does not know this key; give storage_options={'s3': {'key': ..., 'secret': ...}}",
    "SignatureDoesNotMatch": "the secret is not the key's; give storage_options={'s3': {'key': ..., 'secret': ...}}",
    "AccessDenied": "this key may not list and make uploads there",
}


@dataclass(frozen=True, slots=True)
class _Ticket:
    """The data that complete an upload, as a payload stores them."""

    upload: str
    nonce: str
    parts: Sequence[Mapping[str, str | int]]

    @classmethod
    def of(cls, file: StagedFile) -> _Ticket:
        """Read what `stage` gave; `BadPayload` for anything else."""
        ticket = _ticket_of(file)
        parts: list[Mapping[str, str | int]] = [
            {"PartNumber": part.number("PartNumber", 1, _MOST_PARTS), "ETag": part.text("ETag")}
            for part in ticket.objects("parts")
        ]
        if [part["PartNumber"] for part in parts] != list(range(1, len(parts) + 1)) or not parts:
            raise BadPayload(f"{file.name} does not have the parts 1, 2, ... of an upload")
        return cls(ticket.text("upload", _UPLOADS), ticket.text("nonce", _NONCES), parts)


def _ticket_of(file: StagedFile) -> PayloadFields:
    ticket = file.ticket.value()
    if not isinstance(ticket, dict):
        raise BadPayload(f"{file.name} has no ticket of an upload")
    return PayloadFields(ticket, file.name)


def _code_of(error: BaseException) -> str:
    """Return the server's own error code, which s3fs translates and keeps as the cause; empty if there is none."""
    response = getattr(error.__cause__ or error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
