#!/usr/bin/env python3
"""Writes the packages of an installation whose format needs no other tool: see scripts/dist.

usage: package.py describe DIR                          the machine and the glibc version of the programs in DIR
       package.py stage VERSION DATE STAGE TO           archive, wheel and npm packages of the installation in STAGE
       package.py image VERSION DATE STAGE TO BASE      the container image, on the root file system in the tar file BASE
       package.py finish VERSION DATE TO                SBOM, installer and SHA256SUMS for the packages in TO
"""

import hashlib
import os
import sys
from pathlib import Path

import elf
import image
import npm
import sbom
import tree
import wheel

PROGRAMS = ["bin/proctor", "bin/proctord"]
HELPERS = ["libexec/proctor/proctor-sandbox", "libexec/proctor/proctor-git", "libexec/proctor/proctor-sql"]
# The libraries of glibc. All other libraries must be linked statically, except libgcc_s, which every Linux has.
LIBRARIES = ("libc.so.", "libm.so.", "libdl.so.", "libpthread.so.", "librt.so.", "ld-linux-", "libgcc_s.so.")


def fail(message: str, hint: str) -> None:
    """Exits with an error."""
    print(f"error: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(1)


def requirements(paths: list[Path]) -> tuple[str, tuple[int, ...], list[str]]:
    """Returns the machine, the newest needed version of glibc, and the libraries of the programs."""
    programs = {path: elf.read(path) for path in paths}
    machines = {program.machine for program in programs.values()}
    if len(machines) != 1:
        fail(f"the programs are for several machines: {', '.join(sorted(machines))}", "build all of them for one target")
    libraries = sorted({library for program in programs.values() for library in program.libraries})
    allowed = (*LIBRARIES, *os.environ.get("ALLOW", "").split())
    foreign = [library for library in libraries if not library.startswith(allowed)]
    if foreign:
        fail(f"the programs need `{foreign[0]}`, which is not part of glibc", "link it statically, or name it in ALLOW")
    return machines.pop(), max(program.glibc for program in programs.values()), libraries


def describe(directory: str) -> None:
    """Prints the machine, the glibc version, and the libraries of the programs in one directory."""
    names = [Path(program).name for program in PROGRAMS + HELPERS]
    machine, glibc, libraries = requirements([Path(directory) / name for name in names])
    print(machine, ".".join(map(str, glibc)) or "none", *libraries)


def stage(version: str, date: int, root: Path, to: Path) -> None:
    """Writes archive, wheel and npm packages."""
    machine, glibc, _ = requirements([root / path for path in PROGRAMS + HELPERS])
    files = tree.read(root)
    name = f"proctor-{version}-{machine}-unknown-linux-gnu"
    archive = [tree.File(f"{name}/{file.path}", file.data, file.executable) for file in files]
    tree.write(to / f"{name}.tar.gz", tree.compress(tree.tar(archive, date)))
    wheel.write(files, version, machine, glibc, date, to)
    npm.write_command(files, version, date, to)
    npm.write_platform(files, version, machine, date, to)


def finish(version: str, date: int, to: Path) -> None:
    """Writes the files about all packages of a directory."""
    sbom.write(version, date, to)
    write_installer(version, to)
    names = sorted(path.name for path in to.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    tree.write(to / "SHA256SUMS", "".join(f"{digest(to / name)}  {name}\n" for name in names).encode())


def write_installer(version: str, to: Path) -> None:
    """Writes the installer with the version and the checksums of the archives."""
    sums = "\n".join(f"{digest(path)}  {path.name}" for path in sorted(to.glob(f"proctor-{version}-*.tar.gz")))
    text = (Path(__file__).parent / "install.sh").read_text()
    for empty, filled in [("version=''\n", f"version={version}\n"), ("sums=''\n", f"sums='{sums}'\n")]:
        # The lines are at the start of the file; later lines only look similar.
        assert f"\n{empty}" in text
        text = text.replace(f"\n{empty}", f"\n{filled}", 1)
    tree.write(to / "install.sh", text.encode())
    (to / "install.sh").chmod(0o755)


def digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(words: list[str]) -> None:
    """Runs the command of the command line."""
    command, *rest = words or [""]
    if command == "describe" and len(rest) == 1:
        describe(rest[0])
    elif command == "stage" and len(rest) == 4:
        stage(rest[0], int(rest[1]), Path(rest[2]), Path(rest[3]))
    elif command == "image" and len(rest) == 5:
        machine, _, _ = requirements([Path(rest[2]) / path for path in PROGRAMS + HELPERS])
        files = tree.read(Path(rest[2]))
        image.write(Path(rest[4]).read_bytes(), files, rest[0], machine, int(rest[1]), Path(rest[3]))
    elif command == "finish" and len(rest) == 3:
        finish(rest[0], int(rest[1]), Path(rest[2]))
    else:
        print(__doc__, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except elf.NotElf as error:
        fail(str(error), "build the programs for Linux on x86_64 or aarch64")
