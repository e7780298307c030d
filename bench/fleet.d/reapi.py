"""The messages of the Remote Execution API that the measurements send, encoded by hand, and the calls with grpcio."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Iterable
from typing import Any

SERVICE = "/build.bazel.remote.execution.v2."
CAS, EXECUTION = SERVICE + "ContentAddressableStorage/", SERVICE + "Execution/"
SHA256 = 1
# Servers accept batches of 4 MiB; the rest is for the other fields.
BATCH_BYTES = 3 << 20

Digest = tuple[str, int]
Blobs = dict[Digest, bytes]


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def field(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def digest_of(data: bytes) -> Digest:
    return hashlib.sha256(data).hexdigest(), len(data)


def digest_message(digest: Digest) -> bytes:
    return field(1, digest[0]) + number(2, digest[1])


def merkle_tree(top: pathlib.Path) -> tuple[Digest, Blobs, Blobs]:
    """Returns the digest of a directory, the blobs of all directories, and the blobs of all files. Leaves `.git` out."""
    directories: Blobs = {}
    files: Blobs = {}

    def add(into: Blobs, data: bytes) -> Digest:
        digest = digest_of(data)
        into[digest] = data
        return digest

    def directory(path: pathlib.Path) -> Digest:
        entries = sorted((entry for entry in path.iterdir() if entry.name != ".git"), key=lambda entry: entry.name)
        nodes = [field(1, field(1, e.name) + field(2, digest_message(add(files, e.read_bytes())))) for e in entries if e.is_file()]
        nodes += [field(2, field(1, e.name) + field(2, digest_message(directory(e)))) for e in entries if e.is_dir()]
        return add(directories, b"".join(nodes))

    return directory(top), directories, files


class Client:
    """Calls of a server. Counts the bytes of all messages."""

    def __init__(self, socket: pathlib.Path) -> None:
        import grpc

        self._channel = grpc.insecure_channel(f"unix:{socket}")
        self.up = self.down = 0

    def _unary(self, method: str, request: bytes) -> bytes:
        answer = self._channel.unary_unary(method)(request, timeout=60)
        self.up += len(request)
        self.down += len(answer)
        return answer

    def find_missing(self, digests: Iterable[Digest]) -> int:
        """Returns the number of missing blobs."""
        request = b"".join(field(2, digest_message(digest)) for digest in digests) + number(3, SHA256)
        return sum(1 for _ in fields(self._unary(CAS + "FindMissingBlobs", request)))

    def upload(self, blobs: Blobs) -> None:
        batch, size = b"", 0
        for digest, data in blobs.items():
            batch += field(2, field(1, digest_message(digest)) + field(2, data))
            size += len(data)
            if size > BATCH_BYTES:
                self._unary(CAS + "BatchUpdateBlobs", batch)
                batch, size = b"", 0
        if batch:
            self._unary(CAS + "BatchUpdateBlobs", batch)

    def execute(self, action: Digest) -> None:
        """Executes an action without a lookup in the action cache, and waits for the end."""
        request = number(3, 1) + field(6, digest_message(action)) + number(9, SHA256)
        self.up += len(request)
        last: bytes = b""
        for last in self._channel.unary_stream(EXECUTION + "Execute")(request, timeout=60):
            self.down += len(last)
        if not any(tag == 5 for tag, _ in fields(last)):
            raise RuntimeError("the server did not execute the action")

    def close(self) -> None:
        self._channel.close()


def fields(message: bytes) -> Iterable[tuple[int, Any]]:
    """Yields the numbers and values of the fields of a message."""
    at = 0

    def read_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = read_varint()
        if tag & 7 == 0:
            yield tag >> 3, read_varint()
        elif tag & 7 == 2:
            size = read_varint()
            yield tag >> 3, message[at : at + size]
            at += size
        else:
            raise ValueError(f"unexpected wire type {tag & 7}")
