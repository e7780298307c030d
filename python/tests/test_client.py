"""Sends requests to a real daemon with both clients."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import proctor_client
from proctor_client import (
    AnswerTimeoutError,
    AsyncClient,
    Client,
    DaemonNotFoundError,
    ProblemError,
    ProctorError,
    RunNotFinishedError,
    RunOptions,
    SqlTarget,
)

from .conftest import Daemon, StartDaemon, make_repo

SCHEMA = "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, tier TEXT)"
SECRET = "a-secret-value-0123456789"


def test_health_has_version_and_state(client: Client) -> None:
    health = client.health()
    assert health["status"] == "ok"
    assert health["version"]


def test_run_passes_and_its_evidence_has_the_recorded_hashes(client: Client, tmp_path: Path) -> None:
    events: list[str] = []
    run = client.run(
        make_repo(tmp_path / "repo", "echo hello"), "pr", on_event=lambda event: events.append(event["event"])
    )
    assert run["verdict"] == "passed"
    assert run["exit_code"] == 0
    assert events[0] == "run_queued"
    assert events[-1] == "run_finished"
    assert run["evidence"]
    for file, digest in run["evidence"].items():
        document = client.evidence_bytes(run["id"], file)
        assert hashlib.sha256(document).hexdigest() == digest
        assert client.evidence(run["id"], file) == json.loads(document)
    assert client.output(run["id"], 0) == b"hello\n"
    assert client.output(run["id"], 0, offset=1, limit=2) == b"el"


def test_failed_check_is_an_answer(client: Client, tmp_path: Path) -> None:
    run = client.run(make_repo(tmp_path / "repo", "echo wrong >&2; exit 3"), "pr")
    assert run["verdict"] == "failed"
    assert run["exit_code"] == 1
    assert client.output(run["id"], 0, "stderr") == b"wrong\n"


def test_evidence_of_a_changeset_is_in_the_repository(client: Client, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", "true")
    (repo / "changes" / "001_x").mkdir(parents=True)
    run = client.run(repo, "pr", "001_x")
    assert run["verdict"] == "passed"
    assert run["changeset_id"] == "001_x"
    assert (repo / "changes" / "001_x" / "verify" / "verify.it.json").is_file()


def test_equal_keys_get_the_same_run(client: Client, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", "true")
    options = RunOptions(reuse="never", idempotency_key=f"key-{tmp_path.name}")
    first = client.submit_run(repo, "pr", options=options)
    second = client.submit_run(repo, "pr", options=options)
    assert second["how"] == "repeated"
    assert second["run"]["id"] == first["run"]["id"]
    assert client.wait_for_run(first["run"]["id"])["verdict"] == "passed"


def test_run_continues_after_the_timeout_and_can_be_cancelled(client: Client, tmp_path: Path) -> None:
    with pytest.raises(RunNotFinishedError) as caught:
        client.run(make_repo(tmp_path / "repo", "sleep 300"), "pr", timeout=0.2)
    run_id = caught.value.run_id
    assert run_id in str(caught.value)
    assert client.get_run(run_id)["state"] != "finished"
    client.cancel_run(run_id)
    run = client.wait_for_run(run_id)
    assert run["verdict"] == "inconclusive"
    assert run["exit_code"] == 130


def test_invalid_spec_is_a_problem_with_its_diagnostics(client: Client, tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", "true")
    (repo / "spec" / "verification.yaml").write_text("version: 1\nprofiles: {}\nskill: {}\n")
    with pytest.raises(ProblemError) as caught:
        client.run(repo, "pr")
    error = caught.value
    assert error.status == 422
    assert error.type == "urn:proctor:problem:invalid-spec"
    assert error.title
    assert error.detail
    assert error.exit_code == 2
    spec = error.problem.get("spec")
    assert spec is not None
    assert spec["diagnostics"]


def test_unknown_run_is_a_problem(client: Client) -> None:
    with pytest.raises(ProblemError) as caught:
        client.get_run("../healthz?x")
    assert caught.value.status == 404
    assert "../healthz?x" in caught.value.detail


def test_large_body_is_refused_before_it_is_read(client: Client) -> None:
    with pytest.raises(ProblemError) as caught:
        client.submit_run("/", "p" * 3_000_000)
    assert caught.value.status == 413


def test_judges_statements(client: Client) -> None:
    target = SqlTarget(schema=SCHEMA)
    assert client.sql_verify("SELECT name FROM customers", target)["verdict"] == "ok"
    rejected = client.sql_verify("SELECT nmae FROM customers", target)
    assert rejected["verdict"] == "reject"
    assert [finding["id"] for finding in rejected["diagnostics"]] == ["P0612"]
    assert rejected["diagnostics"][0].get("candidates") == ["name"]
    refused = client.sql_verify("DELETE FROM customers WHERE id = 1", target)
    assert refused["verdict"] == "reject"


def test_lists_policy_and_confidence_are_sent(client: Client) -> None:
    tables = SqlTarget(schema=SCHEMA + "; CREATE TABLE secrets (x TEXT)", tables=["customers"])
    assert client.sql_verify("SELECT x FROM secrets", tables)["verdict"] == "reject"
    columns = SqlTarget(schema=[SCHEMA], columns=["customers.name"])
    assert client.sql_verify("SELECT tier FROM customers", columns)["verdict"] == "reject"
    write = SqlTarget(schema=SCHEMA, policy="write")
    assert client.sql_verify("UPDATE customers SET name = 'x' WHERE id = 1", write)["verdict"] == "ok"
    statement, question = "SELECT name FROM customers", "names of customers in the premium tier"
    assert client.sql_verify(statement, SqlTarget(schema=SCHEMA), question=question)["verdict"] == "ok"
    strict = SqlTarget(schema=SCHEMA, reject_at=1)
    assert client.sql_verify(statement, strict, question=question)["verdict"] == "reject"


def test_relative_database_is_found(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.executescript(SCHEMA)
    monkeypatch.chdir(tmp_path)
    judged = client.sql_verify("SELECT name FROM customers", SqlTarget(database="shop.db"))
    assert judged["verdict"] == "ok"


def test_text_instead_of_a_list_of_names_is_an_error() -> None:
    with pytest.raises(TypeError):
        SqlTarget(tables="customers").allowed_names()


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_missing_answer_is_an_error(kind: Any, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        with pytest.raises(AnswerTimeoutError) as caught:
            health_of(kind(tmp_path / "s"), timeout=0.05)
    assert "GET /healthz" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)


def health_of(client: Any, **options: float) -> Any:
    health = client.health(**options)
    return asyncio.run(health) if isinstance(client, AsyncClient) else health


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_missing_daemon_is_reported_with_a_hint(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(DaemonNotFoundError) as caught:
        health_of(kind(tmp_path / "no.sock"))
    assert str(tmp_path / "no.sock") in caught.value.message
    assert "proctor daemon start" in (caught.value.hint or "")
    assert "hint: " in str(caught.value)


def test_stale_socket_is_no_daemon(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
    with pytest.raises(DaemonNotFoundError):
        Client(tmp_path / "s").health()


def test_broken_answer_is_no_result(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"status":"ok"}')

        server = threading.Thread(target=answer)
        server.start()
        with pytest.raises(proctor_client.ConnectionFailedError):
            Client(tmp_path / "s").health()
        server.join()


BOUNDS = ["drain_ms", "max_runs", "max_runs_per_caller", "max_queued", "max_queued_per_caller"]
QUEUE_OF_ONE = "".join(f"daemon.{bound} = 1\n" for bound in BOUNDS)


@pytest.fixture
def full_queue(start_daemon: StartDaemon, tmp_path: Path) -> tuple[Daemon, list[str]]:
    """Returns a daemon whose queue is full, and the runs that fill it."""
    daemon = start_daemon(QUEUE_OF_ONE)
    client = Client(daemon.socket)
    running = client.submit_run(make_repo(tmp_path / "running", "sleep 300"), "pr")["run"]["id"]
    seen = 0
    while (run := client.get_run(running, wait=30, after=seen))["state"] == "queued":
        seen = run["seq"]
    queued = client.submit_run(make_repo(tmp_path / "queued", "sleep 300"), "pr")["run"]["id"]
    return daemon, [running, queued]


def test_full_queue_is_retried_only_on_request(
    full_queue: tuple[Daemon, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, waiting = full_queue
    client = Client(daemon.socket)
    repo = make_repo(tmp_path / "last", "true")
    with pytest.raises(ProblemError) as caught:
        client.submit_run(repo, "pr")
    assert caught.value.status == 429
    assert caught.value.retry_after is not None
    pauses: list[float] = []

    def end_waiting_runs(pause: float) -> None:
        pauses.append(pause)
        for run_id in waiting:
            client.cancel_run(run_id)
        for run_id in waiting:
            client.wait_for_run(run_id)

    monkeypatch.setattr(time, "sleep", end_waiting_runs)
    assert Client(daemon.socket, retries=1).run(repo, "pr")["verdict"] == "passed"
    assert len(pauses) == 1
    assert pauses[0] >= 1


def test_refused_request_ends_after_its_retries(
    full_queue: tuple[Daemon, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, _ = full_queue
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(ProblemError) as caught:
        Client(daemon.socket, retries=2).submit_run(make_repo(tmp_path / "last", "true"), "pr")
    assert caught.value.status == 429
    assert len(pauses) == 2


def test_values_of_the_environment_are_in_no_message(client: Client, daemon: Daemon, tmp_path: Path) -> None:
    options = RunOptions(env={"API_KEY": SECRET, "PATH": "/usr/bin:/bin"})
    with pytest.raises(ProctorError) as caught:
        client.run(tmp_path / "missing", "pr", options=options)
    assert SECRET not in str(caught.value) + repr(caught.value)
    assert SECRET not in repr(Client(daemon.socket))
    assert SECRET not in repr(options)


def test_cancelled_task_leaves_the_run(daemon: Daemon, tmp_path: Path) -> None:
    async def scenario() -> None:
        client = AsyncClient(daemon.socket)
        run_id = (await client.submit_run(make_repo(tmp_path / "repo", "sleep 300"), "pr"))["run"]["id"]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(client.wait_for_run(run_id), 0.1)
        assert (await client.get_run(run_id))["state"] != "finished"
        await client.cancel_run(run_id)
        assert (await client.wait_for_run(run_id))["verdict"] == "inconclusive"

    asyncio.run(scenario())


def test_tasks_share_a_client(daemon: Daemon) -> None:
    async def scenario() -> list[str]:
        client = AsyncClient(daemon.socket)
        target = SqlTarget(schema=SCHEMA)
        statements = [f"SELECT name FROM customers LIMIT {number}" for number in range(1, 21)]
        judged = await asyncio.gather(*(client.sql_verify(statement, target) for statement in statements))
        return [judgement["verdict"] for judgement in judged]

    assert asyncio.run(scenario()) == ["ok"] * 20
