"""Requests to servers that are slow on purpose, never end, or lead elsewhere."""

from __future__ import annotations

import sys

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import UnavailableError
from airflow_streamstate.launch.processes import output_of
from airflow_streamstate.launch.rest import Until, ask, shown
from support.hostile_server import answering, dripping, dripping_head, endless, hostile_server, redirecting


def reason_of(url: str, **options: object) -> str:
    """Why this request has no answer."""
    with pytest.raises(UnavailableError) as told:
        ask("GET", url, **options)  # type: ignore[arg-type]
    return str(told.value.context["reason"])


def test_an_answer_has_status_and_body() -> None:
    """Any status is an answer."""
    with hostile_server(answering({"/info": {"a": 1}})) as server:
        assert ask("GET", f"{server.url}/info").json == {"a": 1}
        assert ask("GET", f"{server.url}/other").status == 404


@pytest.mark.parametrize("act", [dripping, dripping_head])
def test_a_server_that_sends_a_byte_now_and_then_is_cut_off(act: object) -> None:
    """The time is that of the whole answer, not of the silence between two bytes."""
    with hostile_server(act) as server:  # type: ignore[arg-type]
        assert "within 0.5 s" in reason_of(server.url, seconds=0.5)


def test_an_endless_answer_is_read_to_the_limit_only() -> None:
    """It never fills the memory."""
    with hostile_server(endless) as server:
        assert "more than 1000 bytes" in reason_of(server.url, at_most=1000)


def test_no_redirect_is_followed() -> None:
    """It is an answer, and the other server hears nothing."""
    with hostile_server(answering({"/x": {"secret": 1}})) as other, hostile_server(redirecting(other.url)) as server:
        assert ask("GET", f"{server.url}/x").status == 307
        assert other.paths == []


def test_an_address_that_is_refused_is_never_reached() -> None:
    """The address is checked, not the name."""
    with hostile_server(answering({})) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        assert "no address" in reason_of(url, refuses=lambda address: address in ("127.0.0.1", "::1"))
        assert server.paths == []


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://[::1", "data:,x"])
def test_other_schemes_and_no_urls_are_no_answer(url: str) -> None:
    """Each with a reason."""
    assert reason_of(url, seconds=0.5)


def test_json_that_is_none_is_an_empty_object() -> None:
    """Also where it is nested so deep that Python cannot read it."""
    with hostile_server(answering({"/list": [1]}, lambda handler: handler.wfile.write(b"[" * 100_000))) as server:
        assert ask("GET", f"{server.url}/list").json == {}
        with pytest.raises(UnavailableError):
            ask("GET", f"{server.url}/deep")


def test_the_time_of_a_call_is_that_of_all_its_requests() -> None:
    """What is left becomes less, and then nothing."""
    assert Until(SYSTEM_CLOCK, 100.0).left(5.0) == 5.0
    with pytest.raises(UnavailableError):
        Until(SYSTEM_CLOCK, 0.0).left(5.0)


def test_text_of_a_server_is_one_line_of_limited_length() -> None:
    """No line break, no control character, no end that is never reached."""
    assert shown("a\n\x1b[31mb\u202ec\0" + "x" * 10_000) == "a ?[31mb?c?" + "x" * 289


def test_the_output_of_a_program_is_limited_in_time_and_size() -> None:
    """A program that never ends, or never stops writing, gives nothing."""

    def output(program: str, seconds: float = 30.0) -> bytes:
        return output_of([sys.executable, "-c", program], {}, seconds, 100)

    assert output("print('x')") == b"x\n"
    assert output("import sys; print('x'); sys.exit(1)") == b""
    assert output("while True: print('x' * 1000)") == b""
    assert output("import time\nprint('x', flush=True)\ntime.sleep(1000)", 0.5) == b""
    assert output_of(["/nosuch/program"], {}, 1.0, 100) == b""
