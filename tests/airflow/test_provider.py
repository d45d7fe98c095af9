"""Whether a real Airflow finds the provider, its connection type and its test button."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import airflow
import boto3
import pytest
from airflow.providers.common.compat.sdk import Connection
from packaging.version import Version

from airflow_streamstate.hooks.airflow_command import streamstate
from support.airflow_names import found_hook
from support.airflow_streams import CONN_ID, NamedHome, named_home
from support.docs_commands import other_commands
from support.s3_server import BUCKET, options_for, striking_proxy

pytestmark = [
    pytest.mark.fast,
    pytest.mark.filterwarnings("ignore:ProvidersManager.hooks is deprecated"),  # Airflow's own use of it
]


def pressed(home: NamedHome) -> tuple[bool, str]:
    """What the API server does with the form when its test button is pressed."""
    from airflow.models import Connection

    fields = json.loads(home.connection)
    fields["extra"] = json.dumps(fields["extra"])
    works, words = Connection(conn_id="streamstate_default", **fields).test_connection()
    return works, words


def test_airflow_discovers_the_provider_and_its_connection_type() -> None:
    """With the form's fields, and without importing the hook for them."""
    hook = found_hook("streamstate")
    assert hook is not None
    assert hook.package_name == "airflow-streamstate"
    assert hook.hook_class_name == "airflow_streamstate.hooks.streamstate.StreamStateHook"
    assert hook.connection_testable


def test_discovery_imports_nothing_of_ours_but_the_description() -> None:
    """It runs in every Airflow process."""
    code = (
        "import sys, importlib.metadata as m\n"
        "e = next(e for e in m.entry_points(group='apache_airflow_provider') if 'streamstate' in e.value)\n"
        "e.load()()\n"
        "print(sorted(n for n in sys.modules if n.startswith(('airflow_streamstate', 'airflow.', 'boto3', 'pyspark'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['airflow_streamstate', 'airflow_streamstate.provider_info']"


def test_the_test_button_really_writes_with_a_condition_and_cleans_up(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Airflow calls it: by connection, on an S3 server, leaving nothing."""
    with (
        striking_proxy(s3) as proxy,
        named_home(
            tmp_path, monkeypatch, f"s3://{BUCKET}/button", options_for(proxy.endpoint_url), begins=False
        ) as home,
    ):
        works, words = pressed(home)
        assert works, words
        assert proxy.count("PUT") >= 2
        assert proxy.count("DELETE") == 2  # one under a condition that does not hold, one that cleans up
        found = boto3.client(
            "s3",
            endpoint_url=s3,
            region_name="us-east-1",
            aws_access_key_id="test-key",
            aws_secret_access_key="test-secret",
        ).list_objects_v2(Bucket=BUCKET, Prefix="button/")
        assert found["KeyCount"] == 0


def test_the_test_button_names_a_bucket_that_is_not_there(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one sentence, and without a secret."""
    with named_home(tmp_path, monkeypatch, "s3://nowhere/x", options_for(s3), begins=False) as home:
        works, words = pressed(home)
        assert not works
        assert "nowhere" in words
        assert "test-secret" not in words


def test_a_home_on_s3_needs_no_checkpoints_elsewhere(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_s3: NamedHome
) -> None:
    """They are stored next to it, and the button reports that."""
    connection = Connection.from_json(on_s3.connection, conn_id="streamstate_default")
    extra = {**connection.extra_dejson, "checkpoints_uri": None}
    connection.extra = json.dumps(extra)
    monkeypatch.setenv("AIRFLOW_CONN_STREAMSTATE_DEFAULT", connection.as_json())
    works, words = on_s3.hook().test_connection()
    assert works, words
    assert "checkpoints are in s3://" in words


def test_the_command_of_airflow_has_the_credentials_of_the_connection(
    s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a variable in the environment, which the shell alone would need."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    with named_home(tmp_path, monkeypatch, f"s3://{BUCKET}/command", options_for(s3)) as home:
        home.stream().deploy()
        with pytest.raises(SystemExit) as end:
            streamstate(Namespace(conn_id=CONN_ID, words=["list", "--json"]))
    assert end.value.code == 0
    assert [row["stream_id"] for row in json.loads(capsys.readouterr().out)["streams"]] == ["flights"]


def test_every_command_of_airflow_on_the_pages_is_taken() -> None:
    """By Airflow's own parser, with the command that the provider adds to it: Airflow 3.1 takes none of a provider."""
    from airflow.cli.cli_parser import get_parser

    commands = [command for command in other_commands() if command.startswith("airflow ")]
    ours = [command for command in commands if command.startswith("airflow streamstate ")]
    assert ours
    if Version(airflow.__version__) < Version("3.2"):
        commands = [command for command in commands if command not in ours]
    for command in commands:
        _, *words = shlex.split(command)
        assert callable(get_parser().parse_args(words).func), command
