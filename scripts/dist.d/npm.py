"""Writes the npm packages: `@proctor-verify/proctor` with the command, and one package of programs for each platform.

The package with the command depends on all platform packages optionally, so that npm installs only the package of the
machine (`os`, `cpu`, `libc`). The command is a shell script that executes the program, without a start of Node.
"""

import json
from pathlib import Path

import tree

SCOPE = "@proctor-verify"
CPUS = {"x86_64": "x64", "aarch64": "arm64"}
COMMON = {
    "license": "MIT OR Apache-2.0",
    "repository": {"type": "git", "url": "git+https://github.com/proctor-verify/proctor.git"},
}
README = """\
# Proctor

Verifies changes in a sandbox, and records evidence. Linux only. `npm install -g @proctor-verify/proctor` installs the
command `proctor`. The manual is at <https://github.com/proctor-verify/proctor>.
"""


def write_command(files: list[tree.File], version: str, date: int, to: Path) -> Path:
    """Writes the package with the command and the manual pages."""
    pages = [tree.File(f"man/{Path(f.path).name}", f.data, False) for f in tree.below(files, "share/man")]
    manifest = {
        "name": f"{SCOPE}/proctor",
        "version": version,
        "description": "Verifies changes in a sandbox, and records evidence",
        **COMMON,
        "os": ["linux"],
        "bin": {"proctor": "bin/proctor"},
        "man": [f"./{page.path}" for page in pages],
        "optionalDependencies": {f"{SCOPE}/linux-{cpu}": version for cpu in CPUS.values()},
    }
    command = (Path(__file__).parent / "npm-command.sh").read_bytes()
    return _write(manifest, [tree.File("bin/proctor", command, True), *pages], files, date, to)


def write_platform(files: list[tree.File], version: str, machine: str, date: int, to: Path) -> Path:
    """Writes the package with the programs for one machine."""
    cpu = CPUS[machine]
    manifest = {
        "name": f"{SCOPE}/linux-{cpu}",
        "version": version,
        "description": f"The programs of Proctor for Linux on {machine}; install {SCOPE}/proctor instead",
        **COMMON,
        "os": ["linux"],
        "cpu": [cpu],
        "libc": ["glibc"],
        # Yarn must not keep the programs in a zip file.
        "preferUnplugged": True,
    }
    return _write(manifest, tree.below(files, "bin", "libexec"), files, date, to)


def _write(manifest: dict, members: list[tree.File], files: list[tree.File], date: int, to: Path) -> Path:
    licenses = [f for f in files if Path(f.path).name.startswith("LICENSE-")]
    members = [
        *members,
        *(tree.File(Path(f.path).name, f.data, False) for f in licenses),
        tree.File("README.md", README.encode(), False),
        tree.File("package.json", (json.dumps(manifest, indent=2) + "\n").encode(), False),
    ]
    packed = [tree.File(f"package/{f.path}", f.data, f.executable) for f in members]
    name = manifest["name"].lstrip("@").replace("/", "-")
    path = to / f"{name}-{manifest['version']}.tgz"
    tree.write(path, tree.compress(tree.tar(packed, date, directories=False)))
    return path
