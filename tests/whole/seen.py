"""What a step can see for itself of its sandbox, as one JSON object: the name of a control, and whether
it holds. What cannot be told from inside is left out; `namespaces` is for who stands outside, and
`foreign` has what could be read or changed of processes that are not the step's.

    python3 -c "$(cat seen.py)" FILTERS SECRET SOCKET

FILTERS is the number of seccomp filters around proctor, SECRET a file that no step may see, SOCKET the
name of a socket without a path that somebody outside listens on.
"""

import ctypes
import errno
import json
import os
import socket
import stat
import sys

libc = ctypes.CDLL(None, use_errno=True)
KEYCTL = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
SESSION, USER = -3, -4  # keyctl(2): KEY_SPEC_*
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)


def answers(call):
    """The error of a call; 0 where it succeeds."""
    try:
        call()
    except OSError as error:
        return error.errno
    return 0


def device(name="/tmp/.a-device"):
    """Landlock answers EACCES before the kernel looks at capabilities, which is EPERM."""
    return answers(lambda: os.mknod(name, stat.S_IFBLK | 0o600))


def read_only(path):
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def touched(path):
    """Whether something is changed: a file made in a directory, or the times of either."""
    made = os.path.join(path, ".made-by-a-step")
    can_make = answers(lambda: os.close(os.open(made, os.O_CREAT | os.O_WRONLY, 0o600))) == 0
    return can_make or answers(lambda: os.utime(path)) == 0


def git_directory():
    """In a copy of the tree `.git` names it."""
    return ".git" if os.path.isdir(".git") else open(".git").read().removeprefix("gitdir:").strip()


def keys():
    ctypes.set_errno(0)
    return libc.syscall(KEYCTL, 0, USER, 0) >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)


def interfaces():
    return [line.split(":")[0].strip() for line in open("/proc/self/net/dev") if ":" in line]


def kernel_files():
    """None of these may tell anything, and none of the settings may be written."""
    told = [path for path in ["/proc/kallsyms", "/proc/keys", "/proc/kmsg"] if answers(lambda: open(path).read(1)) == 0]
    return read_only("/proc/sys") and not told and not open("/proc/cmdline").read(1)


vsock = answers(lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close())
def reached(name):
    """Whether a socket of the outside takes a connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mine:
        return answers(lambda: mine.connect("\0" + name)) == 0


def processes():
    return [name for name in os.listdir("/proc") if name.isdigit()]


def foreign():
    """Files of other processes that let this one read secrets or change something."""
    own = {os.readlink("/proc/self"), status["PPid"].strip()}
    others = [f"/proc/{number}" for number in processes() if number not in own]
    secret_files = [f"{other}/{name}" for other in others for name in ["environ", "mem", "maps"]]
    read = [path for path in secret_files if answers(lambda: open(path, "rb").close()) == 0 and readable(path)]
    settings = [f"{other}/oom_score_adj" for other in others]
    return read + [path for path in settings if answers(lambda: open(path, "r+").close()) == 0]


def readable(path):
    try:
        with open(path, "rb") as file:
            return bool(file.read(1))
    except OSError:
        return False


def listed(path):
    """The names in a directory; nothing where they cannot be had."""
    try:
        return os.listdir(path)
    except OSError:
        return None


outer_filters, secret, outer_socket = int(sys.argv[1]), sys.argv[2], sys.argv[3]
namespaces = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in ["user", "mnt", "pid", "ipc", "uts", "cgroup", "net"]}
seen = {
    "abstract_sockets": not reached(outer_socket),
    "close_fds": sorted(os.listdir("/proc/self/fd"))[:4] in (["0", "1", "2", "3"], ["0", "1", "2"]),
    "git_read_only": not touched(git_directory()) and not touched(os.path.join(git_directory(), "HEAD")),
    "hidden_paths": not os.path.exists(secret),
    "kernel_files": kernel_files(),
    "keyring": not keys(),
    "landlock": device() == errno.EACCES,
    "network_namespace": interfaces() == ["lo"] and vsock != 0,
    "new_session": os.getsid(0) == os.getpid(),
    "no_capabilities": not any(int(status[f"Cap{kind}"], 16) for kind in ["Inh", "Prm", "Eff", "Amb"]),
    "no_new_privs": status["NoNewPrivs"] == "1",
    "private_dev": len(listed("/dev") or []) <= 13,
    # PID 1, this one, and what starts it in a container of the tests.
    "private_proc": os.readlink("/proc/self") == str(os.getpid()) and len(processes()) <= 3,
    # The repositories of the tests lie there.
    "private_tmp": all(name.startswith("proctor-test-") for name in listed("/tmp") or ["unlisted"]),
    "read_only_root": not any(touched(path) for path in ["/", "/etc", "/usr", "/var", os.path.dirname(secret), secret]),
    "syscall_filter": int(status["Seccomp_filters"]) == outer_filters + 1,
    "uts": socket.gethostname() == "localhost",
}
print(json.dumps({"controls": seen, "foreign": foreign()[:9], "namespaces": namespaces}))
