"""The generated types are those of the daemon's interface."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proctor_client import Client, SqlTarget, wire_types

from .conftest import WORKSPACE, make_repo


def test_types_are_up_to_date() -> None:
    command = [sys.executable, str(WORKSPACE / "python" / "generate_types.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_answers_have_the_fields_of_their_types(client: Client, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads((WORKSPACE / "schemas" / "openapi.json").read_text())

    def check(answer: Any, name: str) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer)
        kind = getattr(wire_types, name)
        assert set(kind.__required_keys__) <= set(answer) <= set(kind.__annotations__)

    check(client.health(), "Health")
    target = SqlTarget(schema="CREATE TABLE t (name TEXT)")
    check(client.sql_verify("SELECT name FROM t", target), "Judgement")
    submitted = client.submit_run(make_repo(tmp_path / "repo", "true"), "pr")
    check(submitted, "SubmittedRun")
    check(client.wait_for_run(submitted["run"]["id"], on_event=lambda _event: None), "RunWithEvents")
