"""The options of the SSH launcher."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.ssh_connection import SshOptions


def test_options_of_a_command_line_are_texts() -> None:
    """Numbers and objects may come as texts; what is not given is at its default."""
    found = SshOptions.from_options(
        {
            "host": " edge ",
            "port": "2222",
            "environment": '{"A": "1"}',
            "java_home": "/opt/java",
            "spark_home": "/opt/s",
        }
    )
    assert (found.host, found.port, found.python) == ("edge", 2222, "python3")
    assert found.environ() == {"SPARK_HOME": "/opt/s", "JAVA_HOME": "/opt/java", "A": "1"}
    assert SshOptions.from_options(found.to_json()) == found
    assert SshOptions().to_json() == {}


@pytest.mark.parametrize(
    "name", ["edge-1.example.com", "10.0.0.7", "::1", "edge_1", "fe80::1%eth0"], ids=lambda name: str(name)
)
def test_hosts_are_names_and_addresses(name: str) -> None:
    """As SSH takes them."""
    assert SshOptions.from_options({"host": name}).host == name


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"hots": "edge"}, "no such option.*Did you mean host?"),
        ({"nonsense": "1"}, "known="),
        ({"host": "me@edge"}, "without user or port"),
        ({"host": "-oProxyCommand=x"}, "option=host"),
        ({"host": "edge\nx"}, "a text of one line"),
        ({"host": ["edge"]}, "a text of one line"),
        ({"port": "0"}, "from 1 to 65535"),
        ({"port": "65536"}, "from 1 to 65535"),
        ({"port": True}, "from 1 to 65535"),
        ({"port": "22x"}, "from 1 to 65535"),
        ({"user": "a b"}, "a login name"),
        ({"python": "python3 -E"}, "option=python"),
        ({"python": "bin/python"}, "an absolute path"),
        ({"python": ""}, "option=python"),
        ({"work_dir": "relative"}, "absolute or below ~/"),
        ({"work_dir": "/a,b"}, "absolute or below ~/"),
        ({"work_dir": "/a/../b"}, "absolute or below ~/"),
        ({"java_home": "java"}, "an absolute path on that host"),
        ({"environment": "A=1"}, "an object of texts"),
        ({"environment": {"A": ["1"]}}, "an object of texts"),
        ({"environment": {"A B": "1"}}, "an object of texts"),
        ({"environment": {"DB_PASSWORD": "x"}}, "looks like a secret"),
    ],
)
def test_wrong_options_are_refused_by_name(raw: dict[str, object], words: str) -> None:
    """Each with what it takes."""
    with pytest.raises(InvalidRequestError, match=words) as caught:
        SshOptions.from_options(raw)
    assert caught.value.next_step


def test_a_secret_in_the_options_is_not_told() -> None:
    """The sentence names the variable, not its value."""
    with pytest.raises(InvalidRequestError) as caught:
        SshOptions.from_options({"environment": {"DB_PASSWORD": "hunter2"}})
    assert "hunter2" not in str(caught.value)
