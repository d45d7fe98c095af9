"""``airflow streamstate``: the shell with the home of a connection."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

import pytest

from airflow_streamstate.hooks.airflow_command import get_commands, streamstate
from support.airflow_streams import CONN_ID, NamedHome


def parsed(*words: str) -> Namespace:
    """What Airflow's parser makes of ``airflow streamstate WORDS``."""
    parser = ArgumentParser()
    (command,) = get_commands()
    for arg in command.args:
        arg.add_to_parser(parser)
    return parser.parse_args(words)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    """The exit status and the one JSON object."""
    with pytest.raises(SystemExit) as end:
        streamstate(parsed(*words))
    return int(str(end.value.code)), json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def process_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets Airflow's variable for its own process; here that is the one of all tests."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")


def test_the_home_is_that_of_the_connection(named: NamedHome, capsys: pytest.CaptureFixture[str]) -> None:
    """The options of a verb reach the verb, not Airflow's parser."""
    named.stream().deploy()
    status, found = said(capsys, "--conn-id", CONN_ID, "status", "flights", "--json")
    assert status == 0
    assert found["deployment_id"] == "d-0001"


def test_a_connection_that_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """And the status of a mistake."""
    status, found = said(capsys, "--conn-id", "none_such", "list", "--json")
    assert status == 2
    assert found["error"]["context"] == {"conn_id": "none_such"}  # type: ignore[index]


def test_without_a_connection_it_is_the_shell(named: NamedHome, capsys: pytest.CaptureFixture[str]) -> None:
    """With its own option for the home."""
    named.stream().deploy()
    status, found = said(capsys, "status", "flights", "--home", named.config.home_uri, "--json")
    assert status == 0
    assert found["stream_id"] == "flights"
