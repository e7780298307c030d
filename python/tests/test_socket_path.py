"""The order in which a client tries sockets, which must be the order of `proctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from proctor_client import ConfigError
from proctor_client.socket_path import SYSTEM_SOCKET, SocketCandidate, socket_candidates

HOME = {"HOME": "/home/a"}
SESSION = {**HOME, "XDG_RUNTIME_DIR": "/run/user/7"}
IN_STATE = "/home/a/.local/state/proctor/run/proctord.sock"


def paths(env: dict[str, str], uid: int, config: str = "/nonexistent", user_dirs: str = "/nonexistent") -> list[str]:
    return [found.path for found in socket_candidates(None, env, uid, config, user_dirs)]


def test_named_socket_is_the_only_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    assert socket_candidates("s", SESSION, 7) == [SocketCandidate("/s", is_named=True)]


def test_default_sockets_of_the_user_come_before_the_systems() -> None:
    assert paths(SESSION, 7) == ["/run/user/7/proctor/proctord.sock", IN_STATE, SYSTEM_SOCKET]
    assert paths(HOME, 7) == [IN_STATE, SYSTEM_SOCKET]
    assert paths({**HOME, "XDG_STATE_HOME": "/state"}, 7) == ["/state/proctor/run/proctord.sock", SYSTEM_SOCKET]
    assert paths({**HOME, "XDG_RUNTIME_DIR": "relative"}, 7) == [IN_STATE, SYSTEM_SOCKET]


def test_root_uses_only_the_systems_socket() -> None:
    assert socket_candidates(None, SESSION, 0, "/nonexistent") == [SocketCandidate(SYSTEM_SOCKET, is_named=False)]


def test_only_the_systems_socket_may_refuse_this_user() -> None:
    assert [found.is_system for found in socket_candidates(None, SESSION, 7, "/nonexistent")] == [False, False, True]


def test_runtime_directory_of_the_user_is_found_without_the_variable(tmp_path: Path) -> None:
    uid = os.geteuid() or 7
    own = tmp_path / str(uid)
    own.mkdir(mode=0o700)
    os.chown(own, uid, -1)
    socket = str(own / "proctor/proctord.sock")
    assert paths(HOME, uid, user_dirs=str(tmp_path))[0] == socket
    own.chmod(0o722)
    assert paths(HOME, uid, user_dirs=str(tmp_path))[0] == IN_STATE


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs a TOML parser")
def test_config_names_the_socket(tmp_path: Path) -> None:
    own = tmp_path / "own" / "proctor" / "proctord.toml"
    own.parent.mkdir(parents=True)
    own.write_text("[daemon]\nsocket = '/own'\n")
    env = {**SESSION, "XDG_CONFIG_HOME": str(tmp_path / "own")}
    assert paths(env, 7) == ["/own"]
    system = tmp_path / "system.toml"
    system.write_text("[daemon]\nsocket = '/system'\n")
    assert paths(env, 7, str(system)) == ["/system"]
    # The system's file takes precedence even if it names no socket.
    system.write_text("allow_network = false\n")
    assert paths(env, 7, str(system)) == ["/run/user/7/proctor/proctord.sock", IN_STATE, SYSTEM_SOCKET]


@pytest.mark.parametrize("text", ["[daemon", "[daemon]\nsocket = 'relative'\n", "daemon = 1\nsocket = 1\n"])
def test_invalid_config_is_an_error(tmp_path: Path, text: str) -> None:
    system = tmp_path / "system.toml"
    system.write_text(text + "# socket")
    with pytest.raises(ConfigError) as caught:
        paths(HOME, 7, str(system))
    assert str(system) in caught.value.message


def test_unreadable_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        paths(HOME, 7, str(tmp_path))
