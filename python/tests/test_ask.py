"""Asks questions through a real daemon. Its provider is a program that replays recorded answers."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from proctor_client import AsyncClient, Client, ProblemError, SqlTarget
from proctor_client.langchain import proctor_tools
from proctor_client.wire_types import SqlAskBounds

from .conftest import WORKSPACE, Daemon, StartDaemon

QUESTION = "top 3 customers by spending"


@pytest.fixture
def shop(tmp_path: Path) -> SqlTarget:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((WORKSPACE / "python" / "examples" / "shop.sql").read_text())
    return SqlTarget(database=path)


def test_question_is_answered_after_a_correction(client: Client, shop: SqlTarget) -> None:
    answer = client.sql_ask(QUESTION, shop)
    assert answer["verdict"] == "answered", answer["reason"]
    assert [attempt["outcome"] for attempt in answer["attempts"]] == ["rejected", "answered"]
    assert "o.amount" in (answer.get("statement") or "")
    judgement, result = answer.get("judgement"), answer.get("result")
    assert judgement is not None
    assert judgement["verdict"] == "ok"
    assert result is not None
    assert [row[0] for row in result["rows"]] == ["Ben", "Ada", "Cleo"]


def test_question_without_an_accepted_statement_has_no_answer(client: Client, shop: SqlTarget) -> None:
    bounds: SqlAskBounds = {"attempts": 1}
    answer = client.sql_ask(QUESTION, shop, bounds=bounds)
    assert answer["verdict"] == "gave_up"
    assert answer.get("statement") is None
    assert answer.get("result") is None


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_tool_answers_with_the_verdict_first(kind: Any, daemon: Daemon, shop: SqlTarget) -> None:
    (tool,) = proctor_tools(kind(daemon.socket), db=shop.database, include=["sql_ask"])
    arguments = {"question": QUESTION}
    text = asyncio.run(tool.ainvoke(arguments)) if kind is AsyncClient else tool.invoke(arguments)
    assert text.startswith("ANSWERED: 3 rows, after 2 attempts.\n")
    assert '| ["Ben", 330.0]' in text


def test_daemon_without_a_provider_refuses_questions(start_daemon: StartDaemon, shop: SqlTarget) -> None:
    with pytest.raises(ProblemError) as caught:
        Client(start_daemon("").socket).sql_ask(QUESTION, shop)
    assert "provider" in caught.value.detail
