"""Runs the example as a user would, with a daemon that the operator's config names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .conftest import WORKSPACE, Daemon

pytest.importorskip("langchain_core")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs a TOML parser, which finds the socket in the config")
def test_example_answers_its_question(daemon: Daemon) -> None:
    script = WORKSPACE / "python" / "examples" / "ask_shop.py"
    environment = {**daemon.environment(), "PYTHONPATH": str(WORKSPACE / "python"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["ok", "reject", "reject", "reject"]
    assert lines[4] == "customers ['id', 'name', 'tier']"
    assert "[['premium', 2], ['standard', 2]]" in lines
    agent = lines[7:11]
    assert agent[0].startswith("sql_schema: SCHEMA: 2 tables")
    assert agent[1].startswith("sql_run: REJECTED (P0612)")
    assert agent[2] == "sql_run: OK: 3 rows."
    assert agent[3] == "Ben spent most (330.00), then Ada (200.50) and Cleo (144.90)."
    assert lines[11:14] == [
        "attempt 1: rejected ['P0612']",
        "attempt 2: answered []",
        "answered: [['Ben', 330.0], ['Ada', 200.5], ['Cleo', 144.9]]",
    ]
