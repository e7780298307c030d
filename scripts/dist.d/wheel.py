"""Writes the Python wheel `proctor-verify`.

The wheel has no Python code. pip, uv and pipx copy `scripts/` to the `bin` of the environment and `data/` to its root,
so that the programs find the helpers in `../libexec/proctor`, as in every other installation. maturin is not used: its
wheels contain the programs of one cargo package, all in `bin`, and it cannot build the static programs.
"""

import base64
import hashlib
import io
import time
import zipfile
from pathlib import Path

import tree

NAME = "proctor_verify"
METADATA = """\
Metadata-Version: 2.4
Name: proctor-verify
Version: {version}
Summary: Verifies changes in a sandbox, and records evidence
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.8
Project-URL: Source, https://github.com/proctor-verify/proctor
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Description-Content-Type: text/markdown

# Proctor

The programs of [Proctor](https://github.com/proctor-verify/proctor), for Linux: `uv tool install proctor-verify`
installs the command `proctor`. The package `proctor-client` is a client of its daemon.
"""
WHEEL = """\
Wheel-Version: 1.0
Generator: scripts/dist
Root-Is-Purelib: false
Tag: {tag}
"""


def tag(machine: str, glibc: tuple[int, ...]) -> str:
    """Returns the tag: programs of a release need glibc 2.28, and other builds may need a newer one."""
    major, minor = max(glibc, (2, 28))[:2]
    return f"py3-none-manylinux_{major}_{minor}_{machine}"


def write(files: list[tree.File], version: str, machine: str, glibc: tuple[int, ...], date: int, to: Path) -> Path:
    """Writes the wheel to a directory, and returns its path."""
    name = f"{NAME}-{version}"
    tagged = tag(machine, glibc)
    members = [
        tree.File(f"{name}.data/scripts/{Path(file.path).name}", file.data, True) for file in tree.below(files, "bin")
    ]
    members += [
        tree.File(f"{name}.data/data/{file.path}", file.data, file.executable)
        for file in tree.below(files, "libexec", "share/man", "share/bash-completion", "share/zsh", "share/fish")
    ]
    members += [
        tree.File(f"{name}.dist-info/licenses/{Path(file.path).name}", file.data, False)
        for file in files
        if Path(file.path).name.startswith("LICENSE-")
    ]
    texts = {"METADATA": METADATA.format(version=version), "WHEEL": WHEEL.format(tag=tagged)}
    members += [tree.File(f"{name}.dist-info/{file}", text.encode(), False) for file, text in texts.items()]
    members.sort(key=lambda file: file.path)
    record = f"{name}.dist-info/RECORD"
    rows = [f"{file.path},sha256={_digest(file.data)},{len(file.data)}\n" for file in members]
    members.append(tree.File(record, "".join([*rows, f"{record},,\n"]).encode(), False))

    path = to / f"{name}-{tagged}.whl"
    tree.write(path, _zip(members, date))
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _zip(members: list[tree.File], date: int) -> bytes:
    buffer = io.BytesIO()
    # Zip files cannot contain dates before 1980.
    moment = max(time.gmtime(date)[:6], (1980, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in members:
            info = zipfile.ZipInfo(file.path, moment)
            info.create_system = 3
            info.external_attr = (0o100000 | file.mode) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, file.data, compresslevel=9)
    return buffer.getvalue()
