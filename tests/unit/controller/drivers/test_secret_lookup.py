"""References become values on their way to a driver, and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from airflow_streamstate.allowed import Allowed
from airflow_streamstate.controller.client import Controller
from airflow_streamstate.controller.drivers.secret_lookup import (
    REDACTION,
    environment_secrets,
    from_environment,
    has_references,
    resolve,
)
from airflow_streamstate.controller.home import Home
from airflow_streamstate.controller.wait.condition import WaitCondition
from airflow_streamstate.errors import DataError, DeploymentFailedError, InvalidRequestError, UnavailableError
from airflow_streamstate.protocol import layout
from airflow_streamstate.protocol.codec import to_bytes
from airflow_streamstate.protocol.events import Failed
from airflow_streamstate.protocol.redaction import Reference, parse_reference
from airflow_streamstate.store.options import S3Options, StoreOptions
from support.recorded_specs import with_version
from support.sim_stage import STREAM, Stage

DB = "secret://airflow-connection/orders_db#password"
TOKEN = "secret://airflow-variable/token"
KNOWN = {DB: "hunter-of-db", TOKEN: "hunter-of-token", "env://PIN": "hunter-of-pin"}
ASKED = {
    "conf": {"spark.orders.password": DB, "spark.orders.endpoint": TOKEN, "spark.a": "b"},
    "arguments": ("--password", DB, f"--token={TOKEN}", "plain"),
    "environment": {"PIN": "env://PIN", "TZ": "UTC"},
}


class Vault:
    """Knows secrets; records what it is asked for."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = dict(known)
        self.asked: list[str] = []
        self.is_away = False

    def __call__(self, reference: Reference) -> str:
        self.asked.append(reference.text)
        if self.is_away:
            raise UnavailableError("the vault does not answer", reference=reference.text)
        if reference.text not in self.known:
            raise InvalidRequestError("there is no such secret", reference=reference.text)
        return self.known[reference.text]


@pytest.fixture
def vault(stage: Stage) -> Vault:
    """The vault of this stage's controller."""
    made = Vault(KNOWN)
    stage.controller = Controller(stage.home, stage.launcher, stage.clock, "tests", look_up=made)
    return made


def everything(stage: Stage) -> str:
    """Every object of the home."""
    bodies = (stage.store.get(info.key) for info in stage.store.list_objects(""))
    return "\n".join(stored.body.decode(errors="replace") for stored in bodies if stored is not None)


def test_a_driver_gets_values_and_the_home_keeps_references(stage: Stage, vault: Vault) -> None:
    """In configuration, arguments and environment; each reference is looked up once for a check and once to launch."""
    stage.deploy(**ASKED)
    request = stage.launcher.requests["d-0001-a0001"]
    assert request.arguments == ("--password", "hunter-of-db", "--token=hunter-of-token", "plain")
    assert {name: request.conf[name] for name in ASKED["conf"]} == {
        "spark.orders.password": "hunter-of-db", "spark.orders.endpoint": "hunter-of-token", "spark.a": "b",
    }  # fmt: skip
    assert request.environment == {"PIN": "hunter-of-pin", "TZ": "UTC"}
    assert request.driver_config["secrets"] == ["hunter-of-db", "hunter-of-pin", "hunter-of-token"]
    spec = stage.spec()
    recorded = (spec.version.arguments, dict(spec.version.conf), dict(spec.version.environment))
    assert recorded == tuple(ASKED[name] for name in ("arguments", "conf", "environment"))
    assert DB in to_bytes(spec).decode()
    assert "hunter" not in everything(stage)
    assert sorted(vault.asked) == sorted([*KNOWN, *KNOWN])


def test_each_attempt_looks_them_up_anew(stage: Stage, vault: Vault) -> None:
    """A password that was changed in the meantime is the new one for a resume, and for the flush of what was dead."""
    stage.deploy(**ASKED)
    stage.stopped()
    vault.known[DB] = "another-one"
    stage.controller.resume(STREAM)
    assert stage.launcher.requests["d-0001-a0002"].arguments[1] == "another-one"
    stage.end(attempt=2, state="gone")
    vault.known[DB] = "a-third"
    stage.controller.order("drain", STREAM)
    assert stage.launcher.requests["d-0001-a0003"].arguments[1] == "a-third"


@pytest.mark.parametrize("verb", ["resume", "drain"])
def test_a_secret_that_is_not_there_changes_nothing(stage: Stage, vault: Vault, verb: str) -> None:
    """Reported in one sentence with the reference and its place, before anything moves or is launched."""
    stage.deploy(**ASKED)
    stage.stopped()
    del vault.known[DB]
    with pytest.raises(InvalidRequestError, match="no such secret") as raised:
        stage.controller.resume(STREAM) if verb == "resume" else stage.controller.order("drain", STREAM)
    assert raised.value.context == {"reference": DB, "used_in": "argument 2"}
    assert list(stage.launcher.requests) == ["d-0001-a0001"]
    assert stage.control.register().value.attempt == 1  # type: ignore[union-attr]


def test_a_deploy_whose_secret_is_not_there_leaves_the_predecessor_alone(stage: Stage, vault: Vault) -> None:
    """Not even its end is kept: nothing at all was done."""
    stage.deploy()
    stage.stopped()
    before = everything(stage)
    vault.is_away = True
    with pytest.raises(UnavailableError, match="does not answer"):
        stage.deploy("print('v2')\n", **ASKED)
    assert everything(stage) == before
    vault.is_away = False
    assert stage.deploy("print('v2')\n", **ASKED).deployment_id == "d-0002"


def test_the_shell_refuses_what_only_airflow_knows(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, with the next step; variables of its own environment it looks up."""
    monkeypatch.setenv("PIN", "hunter-of-pin")
    with pytest.raises(InvalidRequestError, match="only Airflow can look it up") as raised:
        stage.deploy(**ASKED)
    assert raised.value.context["used_in"] == "argument 2"
    assert "Run this from Airflow" in raised.value.next_step
    assert list(stage.store.list_objects("")) == []
    stage.deploy(arguments=("--pin=env://PIN",))
    assert stage.launcher.requests["d-0001-a0001"].arguments == ("--pin=hunter-of-pin",)


def test_only_allowed_secrets_are_looked_up(stage: Stage, vault: Vault) -> None:
    """At deploy, with the line to add, and before anything is recorded; nothing is even asked of the vault."""
    home = Home.of(stage.store, stage.store, stage.folder, stage.clock, allowed=Allowed(("env://OTHER",), where="here"))
    strict = Controller(home, stage.launcher, stage.clock, "tests", look_up=vault)
    with pytest.raises(InvalidRequestError, match="this secret is not allowed for this home") as raised:
        strict.deploy(stage.request(**ASKED))
    assert raised.value.next_step.endswith("to 'secrets' in here.")
    assert vault.asked == []
    assert list(stage.store.list_objects("")) == []


def test_a_forged_spec_makes_a_controller_tell_no_secret(stage: Stage, vault: Vault) -> None:
    """The attack: whoever can write in the home has the next attempt of a driver started with a secret of Airflow."""
    stage.deploy()
    stage.stopped()
    forged = with_version(stage.spec(), environment={"X": "secret://airflow-connection/production"})
    vault.known["secret://airflow-connection/production"] = "hunter-of-production"
    stage.store.put(layout.spec_key(STREAM, "d-0001"), to_bytes(forged))
    strict = Controller(
        Home.of(stage.store, stage.store, stage.folder, stage.clock), stage.launcher, stage.clock, look_up=vault
    )
    with pytest.raises(InvalidRequestError, match="this secret is not allowed for this home"):
        strict.resume(STREAM)
    assert vault.asked == []
    assert "d-0001-a0002" not in stage.launcher.requests


def test_a_variable_that_is_not_set_is_no_secret() -> None:
    """Empty is not there, either."""
    reference = parse_reference("env://PIN")
    assert reference is not None
    assert from_environment(reference, {"PIN": "x"}) == "x"
    assert environment_secrets({"PIN": "x"})(reference) == "x"
    for environ in ({}, {"PIN": ""}):
        with pytest.raises(InvalidRequestError, match="not in the environment"):
            from_environment(reference, environ)


def test_what_only_looks_like_a_reference_is_refused_at_a_launch(stage: Stage, vault: Vault) -> None:
    """As at a deploy, which never records such words: a record that has them was not written by one. (Law 15)"""
    stage.deploy()
    for changes in ({"arguments": ("--from", "secret://our-vault/orders")}, {"conf": {"spark.a": "env://"}}):
        with pytest.raises(InvalidRequestError, match="no reference to a secret"):
            resolve(with_version(stage.spec(), **changes), vault, Allowed())
    assert vault.asked == []


def test_a_secret_with_a_zero_byte_is_refused(stage: Stage, vault: Vault) -> None:
    """No environment and no properties file could hold it."""
    vault.known[TOKEN] = "a\0b"
    with pytest.raises(InvalidRequestError, match="zero byte"):
        stage.deploy(**ASKED)


def test_a_port_is_handed_over_and_not_hidden(stage: Stage, vault: Vault) -> None:
    """Hiding every ``5432`` in a log would make it unreadable."""
    port = "secret://airflow-connection/orders_db#port"
    vault.known[port] = "5432"
    stage.deploy(arguments=("--port", port))
    request = stage.launcher.requests["d-0001-a0001"]
    assert (request.arguments, request.driver_config["secrets"]) == (("--port", "5432"), [])


def test_spark_hides_by_name_what_was_a_reference(stage: Stage, vault: Vault) -> None:
    """Its pages and its log of settings know secrets by their names alone; one that the user hides is the user's."""
    stage.deploy(**ASKED)
    pattern = stage.launcher.requests["d-0001-a0001"].conf[REDACTION]
    assert re.search(pattern, "spark.orders.endpoint")
    assert re.search(pattern, "spark.orders.password")
    assert not re.search(pattern, "spark.orders.endpoints")
    assert not re.search(pattern, "spark.a")
    assert vault.asked


def writes(stage: Stage, log: str, given: str | None = None) -> None:
    """The driver's log; and what it was given, by ``driver.json``."""
    (path := stage.folder / "driver.log").write_text(log)
    stage.launcher.log_paths["d-0001-a0001"] = str(path)
    stage.launcher.log = log
    if given is not None:
        (stage.folder / "driver.json").write_text(given)


def tail_of_failure(stage: Stage) -> object:
    """The end of the log in the error of a failed deployment, which shows no secret."""
    stage.say(Failed, error="cannot log in", traceback="")
    with pytest.raises(DeploymentFailedError) as raised:
        stage.controller.wait(WaitCondition("healthy", STREAM, "d-0001"), 1.0)
    assert "hunter" not in str(raised.value.to_json())
    return raised.value.context["log_tail"]


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        ("logged in with hunter-of-db\n", "logged in with ***\n"),
        ("begun\nlogged in with hunter-of", "begun\n"),  # Python writes in pieces of 8 KiB: half a secret
    ],
)
def test_a_log_is_shown_without_secrets(stage: Stage, vault: Vault, log: str, shown: str) -> None:
    """Values that a script prints are hidden, and so is a line that is still being written."""
    writes(stage, log, '{"launch_key": "d-0001-a0001", "secrets": ["hunter-of-db"]}')
    stage.deploy(**ASKED)
    assert has_references(stage.spec())
    assert vault.asked
    assert stage.controller.logs(STREAM) == shown
    assert tail_of_failure(stage) == shown.rstrip()


def test_a_log_is_shown_without_the_credentials_of_the_home(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script finds them in its environment, and may print them like any other secret."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "hunter-of-session")
    stage.home.config = replace(stage.home.config, options=StoreOptions(S3Options(secret_access_key="hunter-of-aws")))
    writes(stage, "hunter-of-aws hunter-of-session\n")
    stage.deploy()
    assert stage.controller.logs(STREAM) == "*** ***\n"
    assert tail_of_failure(stage) == "*** ***"


@pytest.mark.parametrize("damaged", [None, "", '{"launch_key": "d-0001-a0001", "secrets": ["hunt', "{}"])
def test_a_log_with_unknown_secrets_is_not_shown(stage: Stage, vault: Vault, damaged: str | None) -> None:
    """Nor in the error of a failure; an empty log is shown as empty."""
    writes(stage, "", damaged)
    stage.deploy(**ASKED)
    assert vault.asked
    assert stage.controller.logs(STREAM) == ""
    writes(stage, "logged in with hunter-of-db\n")
    assert "cannot be shown without" in str(tail_of_failure(stage))
    with pytest.raises(DataError, match="cannot be shown without"):
        stage.controller.logs(STREAM)
