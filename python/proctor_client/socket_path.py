"""Finds the sockets at which a daemon of this user may listen, in the order in which `proctor` tries them."""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Optional, Union

from .errors import ConfigError

SYSTEM_SOCKET = "/run/proctor/proctord.sock"
SYSTEM_CONFIG = "/etc/proctor/proctord.toml"
USER_DIRS = "/run/user"
# Size limit of the operator's config, in bytes.
MAX_CONFIG = 1 << 20

StrPath = Union[str, "os.PathLike[str]"]


class SocketCandidate(NamedTuple):
    """A socket to try."""

    path: str
    # True if the caller or the operator named the socket. A daemon of any user is trusted there; at a default path,
    # only a daemon of this user or of root.
    is_named: bool
    # True if a denied connection counts as the absence of a daemon: the system's daemon may not serve this user.
    is_system: bool = False


def socket_candidates(
    named: Optional[StrPath] = None,
    env: Optional[Mapping[str, str]] = None,
    uid: Optional[int] = None,
    system_config: str = SYSTEM_CONFIG,
    user_dirs: str = USER_DIRS,
) -> list[SocketCandidate]:
    """Returns the candidates: the named socket, else the operator's, else the default ones of the user and the system.

    The arguments after `named` describe the process; they default to the real ones.
    """
    env = os.environ if env is None else env
    uid = os.geteuid() if uid is None else uid
    if named is not None:
        return [SocketCandidate(os.path.abspath(named), is_named=True)]
    configured = configured_socket(env, uid, system_config)
    if configured is not None:
        return [SocketCandidate(configured, is_named=True)]
    if uid == 0:
        return [SocketCandidate(SYSTEM_SOCKET, is_named=False)]
    own = []
    runtime = runtime_dir(env, uid, user_dirs)
    if runtime is not None:
        own.append(runtime / "proctor/proctord.sock")
    state = xdg_dir(env, uid, "XDG_STATE_HOME", ".local/state")
    if state is not None:
        own.append(state / "proctor/run/proctord.sock")
    candidates = [SocketCandidate(str(path), is_named=False) for path in own]
    return [*candidates, SocketCandidate(SYSTEM_SOCKET, is_named=False, is_system=True)]


def runtime_dir(env: Mapping[str, str], uid: int, user_dirs: str) -> Optional[Path]:
    """Returns `XDG_RUNTIME_DIR`, or without it the directory that the system creates for the user."""
    named = env.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(named):
        return Path(named)
    path = Path(user_dirs) / str(uid)
    try:
        found = path.lstat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == uid and found.st_mode & 0o022 == 0
    return path if is_own else None


def xdg_dir(env: Mapping[str, str], uid: int, variable: str, fallback: str) -> Optional[Path]:
    """Returns a directory of the XDG base directory specification."""
    named = env.get(variable, "")
    if os.path.isabs(named):
        return Path(named)
    home = env.get("HOME", "")
    if not home:
        try:
            home = pwd.getpwuid(uid).pw_dir
        except KeyError:
            return None
    return Path(home) / fallback if os.path.isabs(home) else None


def configured_socket(env: Mapping[str, str], uid: int, system_config: str) -> Optional[str]:
    """Returns `daemon.socket` of the operator's config: the system's file, else the user's own."""
    own = xdg_dir(env, uid, "XDG_CONFIG_HOME", ".config")
    for path in [Path(system_config), own / "proctor/proctord.toml" if own else None]:
        if path is not None:
            text = read_config(path)
            if text is not None:
                return socket_of_config(path, text)
    return None


def read_config(path: Path) -> Optional[str]:
    """Reads a config, or returns `None` if the file does not exist."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_CONFIG:
            raise config_error(path, "it is not a file of a reasonable size")
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise config_error(path, str(error)) from error


def socket_of_config(path: Path, text: str) -> Optional[str]:
    """Returns `daemon.socket` of the text of a config."""
    try:
        import tomllib
    except ImportError:  # Python before 3.11
        if re.search(r"\bsocket\b", text):
            raise config_error(
                path, "this version of Python has no TOML parser, and the file may name a socket"
            ) from None
        return None
    try:
        socket = tomllib.loads(text).get("daemon", {}).get("socket")
    except (tomllib.TOMLDecodeError, AttributeError) as error:
        raise config_error(path, str(error)) from error
    if socket is None or (isinstance(socket, str) and os.path.isabs(socket)):
        return socket
    raise config_error(path, "`daemon.socket` is not an absolute path")


def config_error(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"the operator's config `{path}` cannot be read: {reason}", "pass the path of the socket")
