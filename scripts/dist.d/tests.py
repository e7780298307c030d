#!/usr/bin/env python3
"""Tests the writers of packages, the installer and the npm command: `python3 scripts/dist.d/tests.py`."""

import base64
import contextlib
import csv
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import unittest
import zipfile
from pathlib import Path

import elf
import image
import package
import tree
import wheel

HERE = Path(__file__).parent
DATE = 1_700_000_000
MACHINE = os.uname().machine
ARCHIVE = f"proctor-1.2.3-{MACHINE}-unknown-linux-gnu"
FAKE_PROGRAM = "#!/bin/sh\necho fake proctor \"$@\"\n"


def sha256(data: bytes) -> str:
    """Returns the checksum in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


class TemporaryDirectoryCase(unittest.TestCase):
    """A test with a temporary directory."""

    def setUp(self) -> None:
        """Creates the directory."""
        self.root = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.root)


class PackagesTest(TemporaryDirectoryCase):
    """Packages of an installation whose programs are a program of this host."""

    def stage(self, name: str, mode: int = 0o755) -> Path:
        """Creates an installation."""
        stage = self.root / name
        for path in package.PROGRAMS + package.HELPERS:
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(shutil.which("true"), stage / path)
            (stage / path).chmod(mode)
        for path in ["share/man/man1/proctor.1", "share/doc/proctor/LICENSE-MIT"]:
            (stage / path).parent.mkdir(parents=True, exist_ok=True)
            (stage / path).write_text(path)
        return stage

    def packages(self, name: str, mode: int = 0o755) -> dict[str, bytes]:
        """Packages an installation, and returns the files."""
        to = self.root / f"{name}-packages"
        to.mkdir()
        stage = self.stage(name, mode)
        package.stage("1.2.3", DATE, stage, to)
        image.write(b"base", tree.read(stage), "1.2.3", MACHINE, DATE, to)
        return {path.name: path.read_bytes() for path in to.iterdir()}

    def test_packages_depend_only_on_content_and_date(self) -> None:
        """A second packaging in a different place, with different modes and dates of the files, gives the same bytes."""
        self.assertEqual(self.packages("one"), self.packages("two", 0o700))

    def test_archive_has_programs_in_one_directory(self) -> None:
        """The archive has one directory at the top, and its owner is root."""
        data = self.packages("one")[f"{ARCHIVE}.tar.gz"]
        self.assertEqual(data[4:8], b"\0\0\0\0", "no date in the gzip header")
        members = tarfile.open(fileobj=io.BytesIO(data)).getmembers()
        names = [member.name for member in members]
        self.assertEqual(names, sorted(names))
        self.assertIn(f"{ARCHIVE}/libexec/proctor/proctor-git", names)
        self.assertEqual({(m.uid, m.gid, m.uname, m.mtime) for m in members}, {(0, 0, "", DATE)})
        self.assertEqual({m.mode for m in members if "/bin/" in m.name}, {0o755})

    def test_wheel_record_lists_every_file(self) -> None:
        """RECORD has the size and the hash of each file, and the helpers are where the programs look for them."""
        packages = self.packages("one")
        name = next(name for name in packages if name.endswith(".whl"))
        with zipfile.ZipFile(io.BytesIO(packages[name])) as archive:
            record = "proctor_verify-1.2.3.dist-info/RECORD"
            rows = {row[0]: row[1:] for row in csv.reader(archive.read(record).decode().splitlines())}
            self.assertEqual(set(rows), set(archive.namelist()))
            for path in set(rows) - {record}:
                digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(path)).digest()).rstrip(b"=").decode()
                self.assertEqual(rows[path], [f"sha256={digest}", str(len(archive.read(path)))])
            scripts = archive.getinfo("proctor_verify-1.2.3.data/scripts/proctor")
            helper = archive.getinfo("proctor_verify-1.2.3.data/data/libexec/proctor/proctor-git")
            self.assertEqual({scripts.external_attr >> 16, helper.external_attr >> 16}, {0o100755})

    def test_wheel_tag_names_the_needed_glibc(self) -> None:
        """A wheel of programs for a newer glibc does not claim 2.28."""
        self.assertEqual(wheel.tag("x86_64", (2, 17)), "py3-none-manylinux_2_28_x86_64")
        self.assertEqual(wheel.tag("aarch64", (2, 34)), "py3-none-manylinux_2_34_aarch64")

    def test_image_digests_match_blobs(self) -> None:
        """Every digest in the documents of the image is the digest of a blob, and of an uncompressed layer."""
        packages = self.packages("one")
        data = next(packages[name] for name in packages if "-image-" in name)
        archive = tarfile.open(fileobj=io.BytesIO(data))
        read = lambda name: archive.extractfile(name).read()  # noqa: E731
        blob = lambda described: read("blobs/sha256/" + described["digest"].split(":")[1])  # noqa: E731
        manifest = json.loads(blob(json.loads(read("index.json"))["manifests"][0]))
        for described in [manifest["config"], *manifest["layers"]]:
            self.assertEqual(sha256(blob(described)), described["digest"].split(":")[1])
            self.assertEqual(len(blob(described)), described["size"])
        layers = [f"sha256:{sha256(gzip.decompress(blob(layer)))}" for layer in manifest["layers"]]
        self.assertEqual(json.loads(blob(manifest["config"]))["rootfs"]["diff_ids"], layers)
        compatible = json.loads(read("manifest.json"))[0]["Layers"]
        self.assertEqual(compatible, ["blobs/sha256/" + layer["digest"].split(":")[1] for layer in manifest["layers"]])

    def test_refuses_libraries_outside_of_glibc(self) -> None:
        """A program that needs a library of this host is not packaged."""
        read = elf.read
        self.addCleanup(setattr, elf, "read", read)
        elf.read = lambda _: elf.Program("x86_64", ["libc.so.6", "libz.so.1"], (2, 28))
        with self.assertRaises(SystemExit), self.assertNoPrint():
            package.requirements([Path("x")])

    def test_refuses_programs_of_two_machines(self) -> None:
        """A mixture of machines is not packaged."""
        read = elf.read
        self.addCleanup(setattr, elf, "read", read)
        elf.read = lambda path: elf.Program(path.name)
        with self.assertRaises(SystemExit), self.assertNoPrint():
            package.requirements([Path("x86_64"), Path("aarch64")])

    def test_refuses_files_that_are_not_programs(self) -> None:
        """A script instead of a program is an error of its own."""
        (self.root / "script").write_text(FAKE_PROGRAM)
        with self.assertRaises(elf.NotElf):
            elf.read(self.root / "script")

    def assertNoPrint(self):  # noqa: N802 (the style of unittest)
        """Hides the printed error."""
        return contextlib.redirect_stderr(io.StringIO())


class InstallerTest(TemporaryDirectoryCase):
    """`install.sh` with a release on the local disk."""

    def setUp(self) -> None:
        """Creates a release of version 1.2.3 with a fake program."""
        super().setUp()
        self.release = self.root / "v1.2.3"
        self.release.mkdir()
        unit = b"ExecStart=/usr/local/bin/proctord\n"
        files = [
            tree.File(f"{ARCHIVE}/bin/proctor", FAKE_PROGRAM.encode(), True),
            tree.File(f"{ARCHIVE}/lib/systemd/user/proctord.service", unit, False),
        ]
        self.archive = self.release / f"{ARCHIVE}.tar.gz"
        self.archive.write_bytes(tree.compress(tree.tar(files, DATE)))
        self.sums = f"{sha256(self.archive.read_bytes())}  {self.archive.name}\n"
        (self.release / "SHA256SUMS").write_text(self.sums)

    def install(self, script: Path = HERE / "install.sh", **variables: str) -> "subprocess.CompletedProcess[str]":
        """Runs the installer."""
        env = {"PATH": os.environ["PATH"], "VERSION": "1.2.3", "PROCTOR_DOWNLOADS": f"file://{self.root}", **variables}
        command = ["sh", str(script), str(self.root / "prefix")]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    def assertInstalled(self) -> None:  # noqa: N802 (the style of unittest)
        """Checks that the program is installed and runs."""
        program = self.root / "prefix/bin/proctor"
        self.assertEqual(subprocess.check_output([program, "x"], text=True), "fake proctor x\n")
        unit = (self.root / "prefix/lib/systemd/user/proctord.service").read_text()
        self.assertEqual(unit, f"ExecStart={self.root}/prefix/bin/proctord\n")

    def assertRefused(self, finished: "subprocess.CompletedProcess[str]", *texts: str) -> None:  # noqa: N802
        """Checks that nothing is installed."""
        self.assertEqual(finished.returncode, 1, finished)
        for text in texts:
            self.assertIn(text, finished.stderr)
        self.assertFalse((self.root / "prefix").exists())

    def test_installs_archive_with_listed_checksum(self) -> None:
        """The checksum of SHA256SUMS is used, and a second installation replaces the files."""
        for _ in range(2):
            finished = self.install()
            self.assertEqual(finished.returncode, 0, finished)
            self.assertInstalled()

    def test_refuses_changed_archive(self) -> None:
        """A changed archive is not extracted."""
        self.archive.write_bytes(self.archive.read_bytes() + b"x")
        self.assertRefused(self.install(), "error: the archive has the checksum", "hint: ")

    def test_refuses_archive_with_other_expected_checksum(self) -> None:
        """The checksum of the caller precedes that of the release."""
        self.assertRefused(self.install(PROCTOR_SHA256="0" * 64), "not " + "0" * 64)

    def test_refuses_release_without_archive_for_this_machine(self) -> None:
        """A machine that SHA256SUMS does not list has no archive."""
        (self.release / "SHA256SUMS").write_text(self.sums.replace(MACHINE, "riscv64"))
        self.assertRefused(self.install(), "has no archive for")

    def test_refuses_missing_release(self) -> None:
        """A version that is not released is reported."""
        self.assertRefused(self.install(VERSION="9.9.9"), "v9.9.9/SHA256SUMS` cannot be downloaded", "hint: ")

    def test_uses_cached_archive_with_right_checksum(self) -> None:
        """A cached archive replaces the download; a damaged one does not."""
        cache = self.root / "cache"
        self.assertEqual(self.install(PROCTOR_CACHE=str(cache)).returncode, 0)
        self.archive.unlink()
        self.assertEqual(self.install(PROCTOR_CACHE=str(cache)).returncode, 0)
        self.assertInstalled()
        shutil.rmtree(self.root / "prefix")
        (cache / self.archive.name).write_bytes(b"damaged")
        self.assertRefused(self.install(PROCTOR_CACHE=str(cache)), "cannot be downloaded")

    def test_released_installer_knows_its_checksums(self) -> None:
        """The released copy needs neither VERSION nor SHA256SUMS, and does not trust a changed SHA256SUMS."""
        package.write_installer("1.2.3", self.release)
        self.archive.write_bytes(self.archive.read_bytes() + b"x")
        (self.release / "SHA256SUMS").write_text(f"{sha256(self.archive.read_bytes())}  {self.archive.name}\n")
        self.assertRefused(self.install(self.release / "install.sh", VERSION=""), "error: the archive has the checksum")


class NpmCommandTest(TemporaryDirectoryCase):
    """The command of the npm package in the layouts of package managers."""

    def setUp(self) -> None:
        """Creates the package with the command."""
        super().setUp()
        self.platform = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}[MACHINE]
        self.modules = self.root / "node_modules"
        self.command = self.modules / "@proctor-verify/proctor/bin/proctor"
        self.command.parent.mkdir(parents=True)
        shutil.copy(HERE / "npm-command.sh", self.command)
        (self.root / "bin").mkdir()
        (self.root / "bin/proctor").symlink_to(self.command)

    def run_command(self) -> "subprocess.CompletedProcess[str]":
        """Runs the command by its link."""
        return subprocess.run([self.root / "bin/proctor", "a b"], capture_output=True, text=True, check=False)

    def add_program(self, modules: Path) -> None:
        """Adds the package of the machine to a directory of packages."""
        program = modules / "@proctor-verify" / self.platform / "bin/proctor"
        program.parent.mkdir(parents=True)
        program.write_text(FAKE_PROGRAM)
        program.chmod(0o755)

    def test_finds_program_next_to_the_package(self) -> None:
        """npm installs both packages side by side, by default."""
        self.add_program(self.modules)
        self.assertEqual(self.run_command().stdout, "fake proctor a b\n")

    def test_finds_program_in_the_package(self) -> None:
        """npm nests the package of the machine, if another version is side by side."""
        self.add_program(self.modules / "@proctor-verify/proctor/node_modules")
        self.assertEqual(self.run_command().stdout, "fake proctor a b\n")

    def test_reports_missing_program(self) -> None:
        """Without optional packages, the command cannot run."""
        finished = self.run_command()
        self.assertEqual(finished.returncode, 5)
        self.assertIn(f"error: the package `@proctor-verify/{self.platform}` is not installed\nhint: ", finished.stderr)


if __name__ == "__main__":
    unittest.main()
