"""Writes the software bill of materials (CycloneDX 1.5) of the programs: each crate that cargo links into them.

cargo-cyclonedx is not used, because it writes one document for each crate of the workspace, not one for the release.
"""

import json
import subprocess
import time
import uuid
from pathlib import Path

import tree

PACKAGES = ["proctor", "proctor-cli", "proctor-sandbox", "proctor-snapshot", "proctor-sql"]
TARGET = "x86_64-unknown-linux-gnu"


def write(version: str, date: int, to: Path) -> Path:
    """Writes the document for the workspace in the current directory, and returns its path."""
    options = ["--locked", "--offline", "--target", TARGET, "--edges", "normal", "--prefix", "none", "--format", "{p}"]
    for package in PACKAGES:
        options += ["--package", package]
    linked = {tuple(line.split()[:2]) for line in _cargo("tree", *options).splitlines() if line}
    metadata = json.loads(_cargo("metadata", "--locked", "--offline", "--format-version", "1"))
    packages = {p["id"]: p for p in metadata["packages"] if (p["name"], f"v{p['version']}") in linked}
    checksums = _checksums(Path(metadata["workspace_root"]) / "Cargo.lock")
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"] if node["id"] in packages}

    components = [_component(p, checksums) for p in packages.values()]
    root = {"type": "application", "name": "proctor", "version": version, "bom-ref": f"pkg:generic/proctor@{version}"}
    dependencies = [
        {
            "ref": _purl(packages[identifier]),
            "dependsOn": sorted(_purl(packages[d["pkg"]]) for d in node["deps"] if _is_linked(d, packages)),
        }
        for identifier, node in nodes.items()
    ]
    programs = [_purl(p) for p in packages.values() if p["name"] in PACKAGES]
    dependencies.append({"ref": root["bom-ref"], "dependsOn": sorted(programs)})
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date)),
            "component": {**root, "licenses": [{"expression": "MIT OR Apache-2.0"}]},
        },
        "components": sorted(components, key=lambda component: component["bom-ref"]),
        "dependencies": sorted(dependencies, key=lambda dependency: dependency["ref"]),
    }
    # The same content has the same serial number.
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    path = to / f"proctor-{version}.cdx.json"
    tree.write(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
    return path


def _cargo(*arguments: str) -> str:
    return subprocess.run(["cargo", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def _is_linked(dependency: dict, packages: dict) -> bool:
    return dependency["pkg"] in packages and any(kind["kind"] is None for kind in dependency["dep_kinds"])


def _purl(package: dict) -> str:
    return f"pkg:cargo/{package['name']}@{package['version'].replace('+', '%2B')}"


def _component(package: dict, checksums: dict) -> dict:
    component: dict = {
        "type": "library",
        "bom-ref": _purl(package),
        "purl": _purl(package),
        "name": package["name"],
        "version": package["version"],
    }
    if package["license"]:
        # Old crates write `MIT/Apache-2.0`, which is not an SPDX expression.
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum := checksums.get((package["name"], package["version"])):
        component["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    vendored = package["version"].partition("+")[2]
    if vendored and package["name"].endswith("-sys"):
        # For example `libgit2-sys 0.18.3+1.9.2` and `zstd-sys 2.0.16+zstd.1.5.7`.
        name = package["name"].removesuffix("-sys")
        library = {"type": "library", "name": name, "version": vendored.removeprefix(f"{name}.")}
        component["components"] = [library]
    return component


def _checksums(lock: Path) -> dict[tuple[str, str], str]:
    """Returns the SHA-256 of each package in Cargo.lock that came from a registry."""
    found = {}
    for entry in lock.read_text().split("[[package]]")[1:]:
        fields = dict(line.split(" = ", 1) for line in entry.splitlines() if " = " in line)
        if "checksum" in fields:
            found[(fields["name"].strip('"'), fields["version"].strip('"'))] = fields["checksum"].strip('"')
    return found
