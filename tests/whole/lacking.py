"""Executes a program in an environment that lacks features of the machine.

    python3 -c "$(cat lacking.py)" LACK... -- PROGRAM ARGUMENT...

The caller lists the missing features. A LACK is one of

    CALL=ERRNO              the system call fails with that error
    CALL:NUMBER&MASK=ERRNO  fails only if the argument with that number has one of these bits
    CALL:NUMBER@VALUE=ERRNO fails only if the argument with that number has this value
    mask:PATH               PATH is hidden, as in a container that masks it
    namespaces              no further user namespace can be created
    cgroups                 no control group is mounted, as in a container without any; needs root

The script blocks system calls with a seccomp filter, which all descendants inherit. For `mask:` and `namespaces`, it
creates a user namespace.
"""

import ctypes
import errno
import os
import struct
import sys

# For each architecture: its number in seccomp, and the numbers of the system calls.
MACHINES = {
    "x86_64": (0xC000003E, {
        "clone3": 435, "fsconfig": 431, "fsopen": 430, "keyctl": 250, "landlock_add_rule": 445,
        "landlock_create_ruleset": 444, "landlock_restrict_self": 446, "mount": 165, "mount_setattr": 442,
        "seccomp": 317, "sethostname": 170, "unshare": 272,
    }),
    "aarch64": (0xC00000B7, {
        "clone3": 435, "fsconfig": 431, "fsopen": 430, "keyctl": 219, "landlock_add_rule": 445,
        "landlock_create_ruleset": 444, "landlock_restrict_self": 446, "mount": 40, "mount_setattr": 442,
        "seccomp": 277, "sethostname": 161, "unshare": 97,
    }),
}
# linux/bpf_common.h, linux/filter.h, linux/seccomp.h
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
NUMBER_AT, ARCH_AT, ARGUMENTS_AT = 0, 4, 16
# linux/prctl.h, linux/sched.h, linux/mount.h
SET_NO_NEW_PRIVS, SET_SECCOMP, FILTER = 38, 22, 2
NEW_USER, NEW_MOUNT, BIND, PRIVATE, DETACH = 0x10000000, 0x00020000, 0x1000, 0x44000, 2

libc = ctypes.CDLL(None, use_errno=True)


def demand(result, what):
    if result != 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")


def refusal(lack, numbers):
    """Returns the filter instructions for one LACK. The system call number is loaded before and after them."""
    call, answer = lack.split("=")
    name, _, test = call.partition(":")
    last = (RETURN, 0, 0, ERRNO | getattr(errno, answer))
    if not test:
        return [(EQUAL, 0, 1, numbers[name]), last]
    (argument, value), compare = (test.split("&"), ANY_BIT) if "&" in test else (test.split("@"), EQUAL)
    low_half = ARGUMENTS_AT + 8 * int(argument)
    return [
        (EQUAL, 0, 4, numbers[name]), (LOAD, 0, 0, low_half), (compare, 0, 1, int(value, 0)), last,
        (LOAD, 0, 0, NUMBER_AT),
    ]


def refuse(lacks):
    arch, numbers = MACHINES[os.uname().machine]
    code = [(LOAD, 0, 0, ARCH_AT), (EQUAL, 1, 0, arch), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, NUMBER_AT)]
    for lack in lacks:
        code += refusal(lack, numbers)
    code.append((RETURN, 0, 0, ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
    head = struct.pack("HP", len(code), ctypes.addressof(program))
    demand(libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    demand(libc.prctl(SET_SECCOMP, FILTER, head, 0, 0), "seccomp filter")


def unshare(kinds):
    uid, gid = os.getuid(), os.getgid()
    demand(libc.unshare(NEW_USER | kinds), "unshare")
    for name, text in [("setgroups", "deny"), ("gid_map", f"{gid} {gid} 1"), ("uid_map", f"{uid} {uid} 1")]:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mask(paths):
    unshare(NEW_MOUNT)
    own_mounts()
    for path in paths:
        demand(libc.mount(b"/dev/null", path.encode(), None, BIND, None), path)


def own_mounts():
    demand(libc.mount(None, b"/", None, PRIVATE, None), "private mounts")


def mounted(kinds):
    """Returns the mount points of file systems of these types, the most recent first."""
    with open("/proc/self/mountinfo") as file:
        lines = [line.split(" - ") for line in file]
    return [front.split()[4] for front, back in reversed(lines) if back.split()[0] in kinds]


def hide_cgroups():
    demand(libc.unshare(NEW_MOUNT), "mount namespace")
    own_mounts()
    for path in mounted({"cgroup", "cgroup2"}):
        demand(libc.umount2(path.encode(), DETACH), path)


end = sys.argv.index("--")
lacks, command = sys.argv[1:end], sys.argv[end + 1:]
masked = [lack.removeprefix("mask:") for lack in lacks if lack.startswith("mask:")]
refused = [lack for lack in lacks if "=" in lack]
if "namespaces" in lacks:
    unshare(0)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
if "cgroups" in lacks:
    hide_cgroups()
if masked:
    mask(masked)
if refused:
    refuse(refused)
os.execvp(command[0], command)
