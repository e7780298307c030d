#!/usr/bin/env python3
"""Serves the packages of a directory on the loopback interface, as PyPI and the npm registry serve them.

usage: serve.py DIR PORT-FILE      prints nothing; writes the port to a file when it is ready
"""

import base64
import hashlib
import http.server
import json
import sys
import tarfile
from pathlib import Path
from urllib.parse import unquote


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET and HEAD requests below /simple, /npm and /files."""

    directory: Path

    def do_GET(self) -> None:  # noqa: N802 (the name is the interface of the base class)
        """Sends the page of a package, or a file."""
        kind, _, name = unquote(self.path.split("?")[0]).strip("/").partition("/")
        if kind == "simple":
            self._send(self._simple(name), "text/html")
        elif kind == "npm":
            self._send(self._npm(name), "application/json")
        elif kind == "files" and "/" not in name and (self.directory / name).is_file():
            self._send((self.directory / name).read_bytes(), "application/octet-stream")
        else:
            self._send(None, "")

    do_HEAD = do_GET  # noqa: N815

    def _send(self, body: "bytes | None", kind: str) -> None:
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _simple(self, name: str) -> "bytes | None":
        wheels = sorted(self.directory.glob(f"{name.replace('-', '_')}-*.whl"))
        links = [f'<a href="/files/{w.name}#sha256={hashlib.sha256(w.read_bytes()).hexdigest()}">{w.name}</a>' for w in wheels]
        return "\n".join(links).encode() if links else None

    def _npm(self, name: str) -> "bytes | None":
        versions = {}
        for packed in sorted(self.directory.glob(f"{name.lstrip('@').replace('/', '-')}-*.tgz")):
            with tarfile.open(packed) as archive:
                manifest = json.load(archive.extractfile("package/package.json"))
            if manifest["name"] == name:
                digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
                url = f"http://{self.headers['Host']}/files/{packed.name}"
                manifest["dist"] = {"tarball": url, "integrity": f"sha512-{digest}"}
                versions[manifest["version"]] = manifest
        if not versions:
            return None
        return json.dumps({"name": name, "versions": versions, "dist-tags": {"latest": list(versions)[-1]}}).encode()

    def log_message(self, *_: object) -> None:
        """Writes no log."""


def main() -> None:
    """Serves until the process is killed."""
    Handler.directory = Path(sys.argv[1])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port_file = Path(sys.argv[2])
    new = port_file.with_suffix(".new")
    new.write_text(str(server.server_address[1]))
    new.replace(port_file)
    server.serve_forever()


if __name__ == "__main__":
    main()
