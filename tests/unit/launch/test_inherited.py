"""What of a worker's environment reaches a driver on its machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.launch.local import LocalLauncher, inherited
from airflow_streamstate.store.options import AzureOptions, S3Options, StoreOptions
from support.launches import launch_request, wait_for_end

SECRETS = {
    "AIRFLOW_HOME": "/srv",
    "AIRFLOW_CONN_PG": "postgres://u:p@h",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "x",
    "AWS_ACCESS_KEY_ID": "key",
    "AWS_SECRET_ACCESS_KEY": "x",
    "AWS_SESSION_TOKEN": "x",
    "DATABASE_URL": "x",
    "GITHUB_TOKEN": "x",
    "STREAMSTATE_SIGNING_KEY": "x",
    "STREAMSTATE_HOME": "s3://b",
    "VAULT_TOKEN": "x",
    "KUBECONFIG": "x",
}


def test_a_list_of_names_is_kept_and_nothing_else() -> None:
    """Whatever a worker has in its environment may be a secret."""
    kept = {"PATH": "/bin", "LC_ALL": "C", "SPARK_HOME": "/s", "PYTHONPATH": "/p", "https_proxy": "p", "TZ": "UTC"}
    assert inherited({**SECRETS, **kept}) == kept


@pytest.mark.parametrize(("uri", "reaches"), [("/home", False), ("gs://b", False), ("s3://b/streams", True)])
def test_credentials_of_the_environment_reach_a_driver_whose_home_needs_them(uri: str, reaches: bool) -> None:
    """Those of a service that it does not use do not."""
    found = StoreOptions().of_environment([uri], SECRETS)
    assert ("AWS_SECRET_ACCESS_KEY" in found) == reaches
    assert not any(name.startswith(("AIRFLOW", "STREAMSTATE", "GITHUB")) for name in found)


def test_a_connection_with_credentials_hands_over_no_others() -> None:
    """Half of one identity and half of a different one would be neither."""
    options = StoreOptions(S3Options(access_key_id="a", secret_access_key="b"), azure=AzureOptions(account_key="k"))
    environ = {**SECRETS, "AWS_REGION": "eu", "AZURE_STORAGE_SAS_TOKEN": "x", "AZURE_AUTHORITY_HOST": "h"}
    found = options.of_environment(["s3://b", "abfss://c@a.dfs.core.windows.net"], environ)
    assert found == {"AWS_REGION": "eu", "AZURE_AUTHORITY_HOST": "h"}


def test_a_driver_has_what_is_kept_and_what_its_request_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process, started as drivers are."""
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    launcher = LocalLauncher(SYSTEM_CLOCK)
    request = launch_request(tmp_path, "env", environment={"CUSTOMER_KEY": "named"})
    handle = launcher.launch(request)
    wait_for_end(launcher, handle)
    lines = dict(line.partition("=")[::2] for line in launcher.logs(handle, 1 << 20).splitlines())
    assert lines["CUSTOMER_KEY"] == "named"
    assert "PATH" in lines
    assert not set(lines) & set(SECRETS)
