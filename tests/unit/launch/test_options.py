"""Options of any launcher, as a shell and as a DAG give them."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.emr_client import EmrServerlessOptions
from airflow_streamstate.launch.interface import plain_options, read_options
from airflow_streamstate.launch.ssh_connection import SshOptions
from airflow_streamstate.launch.yarn_api import YarnOptions


@pytest.mark.parametrize(
    ("of_a_dag", "of_a_shell"),
    [
        (5, "5"),
        (0.5, "0.5"),
        (True, "true"),
        (False, "false"),
        ({"pool": 1}, '{"pool": 1}'),
        (["a", "b"], ' ["a", "b"]'),
        ("[::1]", "[::1]"),
        (" text ", " text "),
    ],
)
def test_a_value_is_the_same_from_both(of_a_dag: object, of_a_shell: str) -> None:
    """A text that is no JSON stays one; a launcher refuses it, or takes it as it is."""
    assert plain_options({"x": of_a_dag}) == plain_options({"x": of_a_shell})


def test_a_number_that_json_does_not_know_is_left_to_be_refused() -> None:
    """A text of it would be recorded."""
    assert plain_options({"x": float("inf")}) == {"x": float("inf")}


def test_a_name_that_a_launcher_lacks_is_told_with_the_nearest() -> None:
    """A slip of the pen is distinguished from an option that does not exist."""
    assert read_options("any", {"queue": 5}, ["queue"]) == {"queue": "5"}
    for name, step in (("quue", "Did you mean queue?"), ("zzz", "Use one of the known ones.")):
        with pytest.raises(InvalidRequestError, match="no such option") as caught:
            read_options("any", {name: "x"}, ["queue"])
        assert caught.value.next_step == step


def test_launchers_take_numbers_for_their_texts() -> None:
    """A queue may be called 5, and an application of EMR 123; a port may be a number or a text."""
    assert YarnOptions.from_options({"queue": 5}, {}).queue == "5"
    ssh = SshOptions.from_options({"host": "edge", "port": 2222, "environment": {"A": 1, "B": True}})
    assert (ssh.port, ssh.environment) == (2222, {"A": "1", "B": "true"})
    role = "arn:aws:iam::123456789012:role/streams"
    emr = {"application_id": 123, "execution_role_arn": role, "launch_uri": "s3://bucket/launches"}
    assert EmrServerlessOptions.from_options(emr).application_id == "123"
