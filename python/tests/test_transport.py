"""Requests as bytes, and answers from bytes."""

from __future__ import annotations

import pytest

from proctor_client import ConnectionFailedError, InvalidAnswerError, ProblemError
from proctor_client.retry import MAX_PAUSE, RetryPolicy
from proctor_client.transport import Request, Response, parse_response

REQUEST = Request("GET", "/healthz", 1)
PROBLEM = b'{"type":"t","title":"busy","status":429,"detail":"d","hint":"h","exit_code":2}'


def response(status: int, headers: bytes, body: bytes) -> Response:
    head = b"HTTP/1.1 %d x\r\n%scontent-length: %d\r\n\r\n" % (status, headers, len(body))
    return parse_response(head + body, "GET")


def problem(headers: bytes) -> Response:
    return response(429, b"content-type: application/problem+json\r\n" + headers, PROBLEM)


def test_request_has_one_host_and_ends_the_connection() -> None:
    lines = Request("POST", "/x", 1, {"a": "ä"}, {"Idempotency-Key": "k"}).to_bytes().split(b"\r\n")
    assert lines[0] == b"POST /x HTTP/1.1"
    assert lines.count(b"Host: localhost") == 1
    assert b"Connection: close" in lines
    assert b"Content-Length: 11" in lines
    assert lines[-1] == '{"a": "ä"}'.encode()


def test_line_break_in_a_header_is_refused() -> None:
    with pytest.raises(ValueError, match="line break"):
        Request("GET", "/x", 1, None, {"Idempotency-Key": "a\r\nHost: b"}).to_bytes()


@pytest.mark.parametrize("cut", [0, 10, 40])
def test_cut_answer_is_no_result(cut: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\ncontent-length: 20\r\n\r\n" + b"x" * 20
    with pytest.raises((ConnectionFailedError, InvalidAnswerError)):
        parse_response(whole[:cut], "GET")


def test_cut_chunked_answer_is_no_result() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"
    assert parse_response(chunked + b"0\r\n\r\n", "GET").body == b"ab"
    with pytest.raises(ConnectionFailedError):
        parse_response(chunked, "GET")


def test_other_protocol_is_an_invalid_answer() -> None:
    with pytest.raises(InvalidAnswerError):
        parse_response(b"SSH-2.0-x\r\n", "GET")


def test_problem_has_every_field() -> None:
    with pytest.raises(ProblemError) as caught:
        problem(b"retry-after: 7\r\n").checked()
    error = caught.value
    assert (error.status, error.title, error.detail, error.hint, error.retry_after) == (429, "busy", "d", "h", 7)
    assert str(error) == "d\nhint: h"


def test_error_without_a_problem_is_an_invalid_answer() -> None:
    with pytest.raises(InvalidAnswerError, match="502"):
        response(502, b"content-type: text/html\r\n", b"<html>").checked()
    with pytest.raises(InvalidAnswerError, match="JSON"):
        response(500, b"content-type: application/problem+json\r\n", b"{").checked()


@pytest.mark.parametrize("value", [b"soon", b"-1", b"1.5", "²".encode("latin-1")])
def test_other_values_of_retry_after_are_ignored(value: bytes) -> None:
    assert problem(b"retry-after: %s\r\n" % value).retry_after() is None


def test_retries_only_refusals_with_a_short_pause() -> None:
    policy = RetryPolicy(1)
    refusal = problem(b"retry-after: 3\r\n")
    assert policy.pause(REQUEST, refusal, 1) == 3
    assert policy.pause(REQUEST, refusal, 2) is None
    assert RetryPolicy().pause(REQUEST, refusal, 1) is None
    assert policy.pause(REQUEST, problem(b""), 1) is None
    assert policy.pause(REQUEST, problem(b"retry-after: %d\r\n" % (MAX_PAUSE + 1)), 1) is None
    assert policy.pause(REQUEST, response(200, b"retry-after: 3\r\n", b""), 1) is None
    once = Request("POST", "/x", 1, may_retry=False)
    assert policy.pause(once, refusal, 1) is None
