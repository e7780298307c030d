"""Connects Schemathesis to the Unix socket of the daemon. Makes some requests valid by inserting an existing repository
and run, and avoids long waits.

The environment variables PROCTOR_FUZZ_* contain SOCKET, REPO and RUN (the ID of a run that has ended).
"""

import os
import re
import socket
import zlib

import schemathesis
import urllib3.connection

SOCKET = os.environ["PROCTOR_FUZZ_SOCKET"]
REPO = os.environ["PROCTOR_FUZZ_REPO"]
RUN = os.environ["PROCTOR_FUZZ_RUN"]
NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,100}")
ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")
WAIT = re.compile(r"[0-9]{1,9}(ms|s|m)?")


def connect(self):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60)
    connection.connect(SOCKET)
    return connection


urllib3.connection.HTTPConnection._new_conn = connect


def is_chosen(value, one_in=2):
    """Returns whether to make a value valid. Deterministic for each value, so that a failure can be reproduced."""
    return zlib.crc32(repr(value).encode()) % one_in == 0


@schemathesis.hook
def map_body(context, body):
    if isinstance(body, dict) and isinstance(body.get("repo"), str) and is_chosen(body):
        # Keep values that are invalid on purpose.
        if body["repo"].startswith("/"):
            body["repo"] = REPO
        if isinstance(body.get("profile"), str) and NAME.fullmatch(body["profile"]):
            body["profile"] = "pr"
    return body


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    if isinstance(path_parameters, dict) and "id" in path_parameters and is_chosen(path_parameters):
        if ID.fullmatch(str(path_parameters["id"])):
            path_parameters["id"] = RUN
        if isinstance(path_parameters.get("n"), int) and path_parameters["n"] >= 0:
            path_parameters["n"] = 0
    return path_parameters


@schemathesis.hook
def map_query(context, query):
    if isinstance(query, dict):
        if isinstance(query.get("wait"), str) and WAIT.fullmatch(query["wait"]):
            query["wait"] = "50ms"
        if isinstance(query.get("repo"), str) and query["repo"].startswith("/") and is_chosen(query):
            query["repo"] = REPO
    return query
