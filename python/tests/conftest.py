"""Starts real daemons for the tests.

`PROCTOR_PROGRAMS` is the directory of `proctord` and its helpers; the default is `target/debug`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from proctor_client import AsyncClient, Client

WORKSPACE = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("PROCTOR_PROGRAMS") or WORKSPACE / "target" / "debug")
READY_MESSAGE = "the daemon listens"
# A provider that replays recorded answers: the last one whose key occurs in the prompt.
REPLAY = (
    "import json, sys; prompt = json.load(sys.stdin)['prompt']; "
    "print(json.dumps({'text': [text for key, text in json.loads(sys.argv[1]) if key in prompt][-1]}))"
)
SPENDING = (
    "SELECT c.name, SUM(o.{}) AS spending FROM customers c JOIN orders o ON o.customer_id = c.id "
    "GROUP BY c.id, c.name ORDER BY spending DESC LIMIT 3"
)
ANSWERS = [["", SPENDING.format("total")], ["o.total", SPENDING.format("amount")]]
COMMAND = ["/usr/bin/python3", "-c", REPLAY, json.dumps(ANSWERS)]
RECORDED_MODEL = f"[ask.providers.recorded]\napi = 'command'\ncommand = {json.dumps(COMMAND)}\n"
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]


class Daemon:
    """A running daemon with its own directories."""

    def __init__(self, root: Path, config: str) -> None:
        self.root = root
        self.socket = root / "run" / "proctord.sock"
        config_file = root / "config" / "proctor" / "proctord.toml"
        config_file.parent.mkdir(parents=True)
        # A client without a path finds the socket in the config.
        config_file.write_text(f"daemon.socket = '{self.socket}'\n" + config)
        self.process = subprocess.Popen(
            [PROGRAMS / "proctord", "--socket", self.socket, "--state-dir", root / "state", "--config", config_file],
            env=self.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        log = []
        for line in self.process.stderr:
            log.append(line)
            if READY_MESSAGE in line:
                break
        else:
            self.process.communicate(timeout=60)
            pytest.fail(f"the daemon does not start: {''.join(log)}")

    def environment(self) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in ("PATH", "PROCTOR_DUCKDB") if name in os.environ}
        return {**inherited, "HOME": str(self.root), "XDG_CONFIG_HOME": str(self.root / "config")}

    def stop(self) -> str:
        """Ends the daemon, and returns the rest of its log."""
        self.process.terminate()
        _, log = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, log
        return log


StartDaemon = Callable[[str], Daemon]


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """Returns a function that starts a daemon with a config."""
    started: list[Daemon] = []

    def start(config: str) -> Daemon:
        root = tmp_path / f"daemon{len(started)}"
        root.mkdir(mode=0o700)
        started.append(Daemon(root, config))
        return started[-1]

    yield start
    for daemon in started:
        if daemon.process.returncode is None:
            daemon.stop()


@pytest.fixture(scope="session")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Returns the daemon that the tests share."""
    if not (PROGRAMS / "proctord").is_file():
        pytest.skip(f"needs the programs in {PROGRAMS}")
    running = Daemon(tmp_path_factory.mktemp("daemon"), RECORDED_MODEL)
    yield running
    running.stop()


class BlockingCalls:
    """Calls the methods of an `AsyncClient`, each in an event loop of its own."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return asyncio.run(getattr(self.client, name)(*arguments, **options))

        return call


@pytest.fixture(params=["Client", "AsyncClient"])
def client(request: pytest.FixtureRequest, daemon: Daemon) -> Client:
    """Returns each client in turn; the methods of both block."""
    if request.param == "Client":
        return Client(daemon.socket)
    return cast(Client, BlockingCalls(AsyncClient(daemon.socket)))


def make_repo(path: Path, script: str) -> Path:
    """Creates a repository whose profile `pr` has one step."""
    spec = path / "spec" / "verification.yaml"
    spec.parent.mkdir(parents=True)
    spec.write_text(
        "version: 1\n"
        "profiles: { pr: { include: [verify.it] } }\n"
        "skills:\n"
        "  verify.it:\n"
        "    determinism: D0\n"
        "    tier: 1\n"
        "    steps:\n"
        f"      - {{ name: it, cmd: [sh, -c, '{script}'] }}\n"
    )
    for command in (["init", "-q", "."], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*GIT, *command], cwd=path, check=True, env={"PATH": os.environ["PATH"], "HOME": str(path)})
    return path
