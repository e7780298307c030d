"""Reads a staged installation, and writes it as an archive whose bytes depend only on the files and the date."""

import gzip
import io
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path


@dataclass
class File:
    """A file of an installation: its path relative to the prefix, its bytes, and whether it is executable."""

    path: str
    data: bytes
    executable: bool

    @property
    def mode(self) -> int:
        """Mode in an archive. The umask of the build machine does not change it."""
        return 0o755 if self.executable else 0o644


def read(root: Path) -> list[File]:
    """Reads every file below a directory, sorted by path."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            name = path.relative_to(root).as_posix()
            found.append(File(name, path.read_bytes(), os.access(path, os.X_OK)))
    return sorted(found, key=lambda file: file.path)


def below(files: list[File], *directories: str) -> list[File]:
    """Returns the files in one of the directories."""
    return [file for file in files if file.path.startswith(tuple(f"{name}/" for name in directories))]


def tar(files: list[File], date: int, directories: bool = True) -> bytes:
    """Writes a tar archive with fixed owner and date, sorted by name. Every parent directory precedes its files."""
    buffer = io.BytesIO()
    written: set[str] = set()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(files, key=lambda file: file.path):
            if directories:
                for parent in reversed(Path(file.path).parents[:-1]):
                    _add_directory(archive, parent.as_posix(), date, written)
            info = tarfile.TarInfo(file.path)
            info.size, info.mode, info.mtime = len(file.data), file.mode, date
            archive.addfile(info, io.BytesIO(file.data))
    return buffer.getvalue()


def _add_directory(archive: tarfile.TarFile, name: str, date: int, written: set[str]) -> None:
    if name in written:
        return
    written.add(name)
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, date
    archive.addfile(info)


def compress(data: bytes) -> bytes:
    """Compresses with gzip, without a name and a date in the header (`gzip -n`)."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=buffer, mtime=0) as stream:
        stream.write(data)
    return buffer.getvalue()


def write(path: Path, data: bytes) -> None:
    """Writes a file under a temporary name first, so that an interrupted build leaves no partial file."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(data)
    new.replace(path)
