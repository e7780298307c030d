"""Writes a container image without a container daemon: an OCI layout in a tar file, which `docker load` reads too."""

import hashlib
import json
import time
from pathlib import Path

import tree

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write(base: bytes, files: list[tree.File], version: str, machine: str, date: int, to: Path) -> Path:
    """Writes an image of two layers: a tar file with the root of a distribution, and the installation in /usr/local."""
    architecture = ARCHITECTURES[machine]
    placed = [tree.File(f"usr/local/{f.path}", f.data, f.executable) for f in tree.below(files, "bin", "libexec", "share")]
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date))
    blobs: dict[str, bytes] = {}

    def add(media: str, data: bytes) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    tars = [base, tree.tar(placed, date)]
    layers = [add(LAYER, tree.compress(data)) for data in tars]
    config = add(CONFIG, _json({
        "created": moment,
        "architecture": architecture,
        "os": "linux",
        # No entry point: CI systems start a shell in the image.
        "config": {
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Cmd": ["proctor", "--help"],
            "Labels": {
                "org.opencontainers.image.source": "https://github.com/proctor-verify/proctor",
                "org.opencontainers.image.version": version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in tars]},
        "history": [
            {"created": moment, "created_by": "mmdebstrap"},
            {"created": moment, "created_by": "scripts/dist"},
        ],
    }))
    manifest = add(MANIFEST, _json({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}))
    manifest["platform"] = {"architecture": architecture, "os": "linux"}
    manifest["annotations"] = {"org.opencontainers.image.ref.name": version}
    blob_path = lambda described: "blobs/sha256/" + described["digest"].removeprefix("sha256:")  # noqa: E731
    documents = {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "manifests": [manifest]},
        # Versions of Docker before 25 read this file instead of index.json.
        "manifest.json": [{
            "Config": blob_path(config),
            "RepoTags": [f"proctor:{version}"],
            "Layers": [blob_path(layer) for layer in layers],
        }],
    }
    members = [tree.File(name, _json(document), False) for name, document in documents.items()]
    members += [tree.File(f"blobs/sha256/{digest}", data, False) for digest, data in blobs.items()]
    path = to / f"proctor-{version}-image-{architecture}.tar"
    tree.write(path, tree.tar(members, date))
    return path


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
