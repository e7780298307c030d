"""Runs statements and describes schemas with a real daemon."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from proctor_client import Client, SqlTarget

from .conftest import WORKSPACE

SHOP = (WORKSPACE / "python" / "examples" / "shop.sql").read_text()
RAISE = "UPDATE orders SET amount = amount + 1 WHERE id = 1"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SHOP)
    return path


def amount(shop: Path) -> float:
    with closing(sqlite3.connect(shop)) as connection:
        (value,) = connection.execute("SELECT amount FROM orders WHERE id = 1").fetchone()
    return float(value)


def test_accepted_statement_returns_rows(client: Client, shop: Path) -> None:
    answer = client.sql_run("SELECT id, name, email FROM customers WHERE id > 2 ORDER BY id", SqlTarget(database=shop))
    assert answer["judgement"]["verdict"] == "ok"
    result = answer.get("result")
    assert result is not None
    assert [column["name"] for column in result["columns"]] == ["id", "name", "email"]
    assert result["rows"] == [[3, "Cleo", "cleo@example.org"], [4, "Dan", None]]
    assert not result["truncated"]


def test_rows_of_a_schema_are_returned(client: Client) -> None:
    answer = client.sql_run("SELECT COUNT(*) FROM orders", SqlTarget(schema=SHOP))
    result = answer.get("result")
    assert result is not None
    assert result["rows"] == [[7]]


@pytest.mark.parametrize("statement", ["SELECT nmae FROM customers", "DELETE FROM orders WHERE id = 1", "SELEC 1"])
def test_rejected_statement_returns_no_rows(client: Client, shop: Path, statement: str) -> None:
    answer = client.sql_run(statement, SqlTarget(database=shop))
    assert answer["judgement"]["verdict"] == "reject"
    assert answer.get("result") is None


def test_rows_above_the_limit_are_cut(client: Client, shop: Path) -> None:
    answer = client.sql_run("SELECT id FROM orders ORDER BY id", SqlTarget(database=shop, limits={"rows": 2}))
    result = answer.get("result")
    assert result is not None
    assert result["rows"] == [[1], [2]]
    assert result["truncated"]


def test_write_is_kept_only_on_request(client: Client, shop: Path) -> None:
    target = SqlTarget(database=shop, policy="write")
    for commit in (False, True):
        answer = client.sql_run(RAISE, target, commit=commit)
        result = answer.get("result")
        assert result is not None, answer
        assert result["changed"] == 1
        assert result["committed"] == commit
        assert amount(shop) == (121.0 if commit else 120.0)


def test_schema_shows_only_names_on_the_list(client: Client, shop: Path) -> None:
    answer = client.sql_schema(
        SqlTarget(database=shop, tables=["customers"], columns=["customers.id", "customers.tier"])
    )
    schema = answer.get("schema")
    assert schema is not None, answer
    assert [table["name"] for table in schema["tables"]] == ["customers"]
    assert [column["name"] for column in schema["tables"][0]["columns"]] == ["id", "tier"]


def test_samples_with_personal_data_are_masked(client: Client, shop: Path) -> None:
    answer = client.sql_schema(SqlTarget(database=shop), samples=3)
    schema = answer.get("schema")
    assert schema is not None, answer
    columns = {column["name"]: column for table in schema["tables"] for column in table["columns"]}
    assert set(columns["status"].get("samples", [])) == {"paid", "open", "cancelled"}
    assert columns["email"]["is_masked"]
    assert "example.org" not in str(columns["email"])
