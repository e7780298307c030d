"""Measures the figures of measured.json with `proctor` and `buildbox-casd`. `bench/fleet` describes the call.

The times are those of two machines that share one computer, and of a server, with no network in between.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import reapi
from parameters import MEASURED_FILE

BENCH = pathlib.Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
CHECKS = 8
RUNS = 11
ACTIONS = 20
CHANGED_FILES = ["py/d00/f0.py", "py/d01/f1.py", "md/d02/changed.md"]
START_TIMEOUT_S = 20

Figures = dict[str, dict[str, Any]]


def load_bench(name: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, str(BENCH / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class CountingProxy:
    """Forwards connections from one Unix socket to another, and counts the bytes of both directions."""

    def __init__(self, listen: pathlib.Path, target: pathlib.Path) -> None:
        self.up = self.down = 0
        self._target = str(target)
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(listen))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def take(self) -> tuple[int, int]:
        """Returns the bytes since the last call."""
        with self._lock:
            taken, self.up, self.down = (self.up, self.down), 0, 0
        return taken

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            for source, sink, name in [(client, server, "up"), (server, client, "down")]:
                threading.Thread(target=self._forward, args=(source, sink, name), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def server(casd: str, store: pathlib.Path, *arguments: str) -> Iterator[pathlib.Path]:
    """Runs the server, and yields its socket."""
    path = store.with_suffix(".sock")
    process = subprocess.Popen(
        [casd, f"--bind=unix:{path}", "--quota-high=500M", "--reserved=0", *arguments, str(store)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not path.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"`{casd}` does not serve `{path}`")
            time.sleep(0.02)
        yield path
    finally:
        process.terminate()
        process.wait()


def stored_envelopes(store: pathlib.Path) -> tuple[list[int], list[int]]:
    """Returns the sizes of the path sets and of the records that the server stores."""
    path_sets, records = [], []
    for path in store.rglob("*"):
        if path.is_file() and path.stat().st_size < 2 << 20:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                kind = json.loads(path.read_bytes())["payloadType"]
                (records if kind.endswith("in-toto+json") else path_sets).append(path.stat().st_size)
    return path_sets, records


def measure_reuse(proctor: str, casd: str, scratch: pathlib.Path) -> Figures:
    """Measures runs of eight checks whose results are stored here, or by another machine."""
    remote = load_bench("remote")
    reuse = remote.reuse
    env = {**os.environ, "HOME": str(scratch), "XDG_RUNTIME_DIR": str(scratch)}
    repo = scratch / "repo"
    repo.mkdir()
    remote.make_repository(repo)
    created = time.monotonic()
    reuse.run(scratch, ["openssl", "genpkey", "-algorithm", "ed25519", "-out", "key.pem"])
    reuse.run(scratch, ["openssl", "pkey", "-in", "key.pem", "-pubout", "-out", "public.pem"])
    (scratch / "key.pem").chmod(0o600)
    with server(casd, scratch / "results") as direct:
        proxied = scratch / "proxy.sock"
        proxy = CountingProxy(proxied, direct)

        def on(state: str, endpoint: pathlib.Path, writes: bool) -> list[str]:
            keys = f"write = true\nsigning_key = '{scratch}/key.pem'\n" if writes else f"trusted_keys = ['{scratch}/public.pem']\n"
            config = scratch / f"{state}-{endpoint.stem}.toml"
            config.write_text(f"[reuse]\nrecheck_percent = 0\n[remote_cache]\nendpoint = 'unix:{endpoint}'\n{keys}")
            return ["--no-daemon", "--profile", "pr", "--config", str(config), "--state-dir", str(scratch / state)]

        time.sleep(max(0, created + reuse.SETTLED_S - time.monotonic()))
        remote.cached_steps(proctor, repo, env, on("first", proxied, True))
        stored = proxy.take()
        found = remote.cached_steps(proctor, repo, env, on("second", proxied, False))
        if found != (CHECKS, CHECKS, CHECKS):
            raise RuntimeError(f"the second machine used {found[1]} of {CHECKS} results of the first one")
        looked_up = proxy.take()
        path_sets, records = stored_envelopes(scratch / "results")
        prune = [proctor, "cache", "prune", "--all", "--state-dir", str(scratch / "second")]
        shared, local = [], []
        for _ in range(RUNS + 2):
            reuse.run(repo, prune, env=env)
            shared.append(reuse.timed([proctor, "run", "--quiet", *on("second", direct, False)], repo, env))
            local.append(reuse.timed([proctor, "run", "--quiet", *on("second", direct, False)], repo, env))
    shared_ms, local_ms = statistics.median(shared[2:]), statistics.median(local[2:])
    run = f"`proctor run` over bench/remote's repository, {CHECKS} checks, median of {RUNS}"
    wire = f"bytes on the socket of buildbox-casd, {CHECKS} checks"
    return {
        "local_run_s": figure(local_ms / 1000, f"all checks stored here: {run}"),
        "shared_step_s": figure((shared_ms - local_ms) / 1000 / CHECKS, f"{shared_ms:.0f} ms with all checks from the server, less the local run, by check"),
        "lookup_up": figure(looked_up[0] // CHECKS, f"{wire}, a run that uses all results, by check"),
        "lookup_down": figure(looked_up[1] // CHECKS, f"{wire}, a run that uses all results, by check"),
        "store_up": figure(stored[0] // CHECKS, f"{wire}, a run that looks for results and stores them, by check"),
        "store_down": figure(stored[1] // CHECKS, f"{wire}, a run that looks for results and stores them, by check"),
        "record": figure(int(statistics.median(records)), f"median of {len(records)} records in the store of buildbox-casd"),
        "path_set": figure(int(statistics.median(path_sets)), f"median of {len(path_sets)} path sets in the store of buildbox-casd"),
    }


def measure_execution(casd: str, scratch: pathlib.Path) -> Figures:
    """Measures the upload of a tree with three changes, and actions that execute `true`."""
    repo = scratch / "tree"
    repo.mkdir()
    load_bench("remote").make_repository(repo)
    runner = pathlib.Path(casd).resolve().with_name("buildbox-run")
    mounts = [f"--runner-arg=--ro-bind-mount={mount}" for mount in ("/usr:/usr", "/usr/bin:/bin", "/usr/lib:/lib", "/usr/lib64:/lib64")]
    with server(casd, scratch / "actions", f"--buildbox-run={runner}", *mounts) as path:
        client = reapi.Client(path)
        _, directories, files = reapi.merkle_tree(repo)
        client.upload({**directories, **files})
        for name in CHANGED_FILES:
            (repo / name).write_text("# changed\n")
        root, new_directories, new_files = reapi.merkle_tree(repo)
        changed = {digest: data for digest, data in new_directories.items() if digest not in directories}
        blobs = {**new_directories, **new_files}
        times = []
        client.up = client.down = 0
        for _ in range(RUNS):
            begin = time.perf_counter()
            missing = client.find_missing(blobs)
            times.append(time.perf_counter() - begin)
        # All three files have the same new content.
        if missing != len(changed) + 1:
            raise RuntimeError(f"the server lacks {missing} blobs of the changed tree instead of {len(changed) + 1}")
        find_up, find_down = client.up // RUNS, client.down // RUNS
        client.upload({digest: data for digest, data in blobs.items() if digest in changed or data == b"# changed\n"})
        actions, sizes = [], []
        for number in range(ACTIONS + 2):
            client.up = client.down = 0
            command = reapi.field(1, "/usr/bin/env") + reapi.field(1, f"N={number}") + reapi.field(1, "true")
            action = reapi.field(1, reapi.digest_message(reapi.digest_of(command))) + reapi.field(2, reapi.digest_message(root))
            begin = time.perf_counter()
            client.upload({reapi.digest_of(data): data for data in (command, action)})
            client.execute(reapi.digest_of(action))
            actions.append(time.perf_counter() - begin)
            sizes.append((client.up, client.down))
        client.close()
    tree = f"{len(new_files)} different files of bench/remote's repository, {len(CHANGED_FILES)} changed"
    action_source = f"`true` over this tree, executed by buildbox-casd, median of {ACTIONS}"
    return {
        "tree_files": figure(2000, "files of bench/remote's repository, rounded"),
        "find_missing_up": figure(find_up, f"message for {len(blobs)} blobs: {tree}"),
        "find_missing_down": figure(find_down, f"answer with {missing} missing blobs: {tree}"),
        "find_missing_s": figure(statistics.median(times), f"the same call, median of {RUNS}"),
        "change_directories": figure(sum(map(len, changed.values())), f"{len(changed)} new directory messages: {tree}"),
        "action_up": figure(int(statistics.median(size[0] for size in sizes[2:])), f"messages of an action: {action_source}"),
        "action_result_down": figure(int(statistics.median(size[1] for size in sizes[2:])), f"answers to an action: {action_source}"),
        "execute_overhead_s": figure(statistics.median(actions[2:]), f"upload and execution of an action: {action_source}"),
    }


def figure(value: float, source: str) -> dict[str, Any]:
    rounded = value if isinstance(value, int) else round(value, 5)
    return {"value": rounded, "source": source, "date": datetime.date.today().isoformat()}


def find(argument: str | None, name: str, built: str) -> str | None:
    path = ROOT / built
    found = argument or shutil.which(name) or (str(path) if path.exists() else None)
    return str(pathlib.Path(found).absolute()) if found else None


def main(arguments: list[str]) -> int:
    given = [*arguments, None, None]
    proctor = find(given[0], "proctor", "target/release/proctor")
    casd = find(given[1], "buildbox-casd", "target/clients/buildbox/buildbox-casd")
    has_grpc = importlib.util.find_spec("grpc") is not None
    lacks_reuse = [n for n, is_there in [("proctor", proctor), ("buildbox-casd", casd), ("openssl", shutil.which("openssl"))] if not is_there]
    lacks_execution = [n for n, is_there in [("buildbox-casd", casd), ("the Python package grpcio", has_grpc)] if not is_there]
    document = json.loads(MEASURED_FILE.read_text()) if MEASURED_FILE.exists() else {"figures": {}}
    with tempfile.TemporaryDirectory(prefix="proctor-fleet-") as directory:
        scratch = pathlib.Path(directory)
        for name, missing, measured in [
            ("reuse of results", lacks_reuse, lambda: measure_reuse(str(proctor), str(casd), scratch)),
            ("remote execution", lacks_execution, lambda: measure_execution(str(casd), scratch)),
        ]:
            if missing:
                print(f"skipped: {name}: {', '.join(missing)} is missing; the figures in {MEASURED_FILE.name} remain")
                continue
            figures = measured()
            document["figures"].update(figures)
            for key, entry in figures.items():
                print(f"{key}: {entry['value']} ({entry['source']})")
    document["machine"] = f"{os.cpu_count()} processors, Linux {platform.release()}, {platform.machine()}"
    MEASURED_FILE.write_text(json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
