"""Reads what an ELF program needs: its machine, its shared libraries, and the newest glibc version of its symbols."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

MACHINES = {62: "x86_64", 183: "aarch64"}
LOAD, DYNAMIC = 1, 2
NEEDED, STRING_TABLE, VERSION_NEEDS, VERSION_NEEDS_COUNT = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


@dataclass
class Program:
    """The requirements of a program."""

    machine: str
    libraries: list[str] = field(default_factory=list)
    glibc: tuple[int, ...] = ()


class NotElf(ValueError):
    """The file is not a 64-bit little-endian ELF file for a known machine."""


def read(path: Path) -> Program:
    """Reads the program. Raises NotElf if the file is something else."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElf(f"`{path}` is not a 64-bit little-endian ELF file")
    (machine,) = struct.unpack_from("<H", data, 18)
    if machine not in MACHINES:
        raise NotElf(f"`{path}` is for the unknown machine {machine}")
    program = Program(MACHINES[machine])
    segments = _segments(data)
    dynamic = next((segment for segment in segments if segment[0] == DYNAMIC), None)
    if dynamic is None:
        return program
    entries = list(_dynamic_entries(data, dynamic))
    values = dict(entries)
    strings = _file_offset(segments, values[STRING_TABLE])
    program.libraries = sorted(_text(data, strings + value) for tag, value in entries if tag == NEEDED)
    if VERSION_NEEDS in values:
        start = _file_offset(segments, values[VERSION_NEEDS])
        versions = _needed_versions(data, start, values[VERSION_NEEDS_COUNT], strings)
        program.glibc = max((_glibc_version(name) for name in versions), default=())
    return program


def _segments(data: bytes) -> list[tuple[int, int, int, int]]:
    """Returns type, file offset, address and size of each segment."""
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    found = []
    for number in range(count):
        kind, _, offset, address, _, file_size = struct.unpack_from("<IIQQQQ", data, table + number * size)
        found.append((kind, offset, address, file_size))
    return found


def _dynamic_entries(data: bytes, segment: tuple[int, int, int, int]):
    _, offset, _, size = segment
    for at in range(offset, offset + size, 16):
        tag, value = struct.unpack_from("<QQ", data, at)
        if tag == 0:
            return
        yield tag, value


def _file_offset(segments: list[tuple[int, int, int, int]], address: int) -> int:
    for kind, offset, start, size in segments:
        if kind == LOAD and start <= address < start + size:
            return offset + address - start
    raise NotElf(f"no segment contains the address {address:#x}")


def _needed_versions(data: bytes, start: int, count: int, strings: int):
    for _ in range(count):
        _, versions, _, first, following = struct.unpack_from("<HHIII", data, start)
        at = start + first
        for _ in range(versions):
            _, _, _, name, after = struct.unpack_from("<IHHII", data, at)
            yield _text(data, strings + name)
            at += after
        start += following


def _text(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()


def _glibc_version(name: str) -> tuple[int, ...]:
    """Returns the version as numbers, or `()` if the symbol version is not one of glibc."""
    prefix, _, version = name.partition("GLIBC_")
    parts = version.split(".")
    return tuple(map(int, parts)) if not prefix and all(part.isdigit() for part in parts) else ()
