"""What the clients of GCS and Azure Blob have in common, without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from airflow_streamstate.store.obstore import check_endpoint, client_options, moment_in, obstore_errors
from airflow_streamstate.store.server import Answer, RequestFailure


def test_the_time_of_an_object_is_aware() -> None:
    """As every server says it; a header that is no time is none."""
    assert moment_in({"last-modified": "Sun, 22 Nov 2026 18:32:36 GMT"}) == datetime(
        2026, 11, 22, 18, 32, 36, tzinfo=UTC
    )
    assert moment_in({"last-modified": "soon"}) is None
    assert moment_in({}) is None


def test_every_request_is_bounded() -> None:
    """Plain HTTP only where the endpoint says so; a silent server ends a request. (Law 6)"""
    assert client_options(None, 5, 60)["allow_http"] is False
    options = client_options("http://127.0.0.1:1", 5, 60)
    assert options["allow_http"] is True
    assert options["read_timeout"] == timedelta(seconds=60)


def test_an_endpoint_holds_no_password() -> None:
    """It would be in errors and in Spark's settings."""
    check_endpoint("https://host/a@b")
    with pytest.raises(RequestFailure) as caught:
        check_endpoint("https://user:hidden@host")
    assert caught.value.answer is Answer.REFUSED
    assert "hidden" not in str(caught.value)


def test_errors_of_the_library_do_not_leave_the_room() -> None:
    """Absence and refusal come as Python's own errors, and are translated as well."""
    with pytest.raises(RequestFailure) as caught, obstore_errors():
        raise FileNotFoundError("Object at location a not found")
    assert caught.value.answer is Answer.ABSENT
