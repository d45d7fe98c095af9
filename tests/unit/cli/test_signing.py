"""A home with a signing key: attacks of who can write in it, `home sign`, rotation, and what a driver is given."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_streamstate.protocol.codec import NEWEST_PROTOCOL
from airflow_streamstate.protocol.signing import SIGNING_KEY_VARIABLE
from support.scripted_driver import script
from support.scripted_rehearsal import keep_plan
from support.scripted_stream import QUERY
from support.shell import Desk, shell

pytestmark = pytest.mark.fast

KEY, NEXT = "first-key-of-at-least-32-characters", "second-key-of-at-least-32-characters"


@pytest.fixture
def signed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A stream that runs in a home with a signing key."""
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, KEY)
    deployed = shell("deploy", "flights", "--app", script(desk.base), "--timeout", 30)
    assert deployed.status == 0, deployed
    return desk


def consented() -> tuple[str, ...]:
    """The words by which a person signs what was shown."""
    return ("--yes", shell("home", "sign", "--json").json["digest"])


def records(home: Path) -> Iterator[tuple[Path, dict[str, object]]]:
    """The JSON objects of a home in a folder, with their paths."""
    for path in sorted(home.rglob("*.json")):
        yield path, json.loads(path.read_bytes())


def spec(desk: Desk, deployment_id: str = "d-0001") -> Path:
    return desk.home / "flights" / "deployments" / deployment_id / "spec.json"


def rewritten(path: Path, **fields: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **fields}))


def runs_another(path: Path, **terms: object) -> None:
    """The record of a deployment, with these terms of its version changed."""
    rewritten(path, version={**json.loads(path.read_bytes())["version"], **terms})


def test_a_stream_lives_through_all_verbs_with_a_key(signed: Desk, tmp_path: Path) -> None:
    """Deployed, rehearsed, stopped, resumed, mirrored and restored: every record of a controller is signed."""
    keep_plan(signed.stream().control, "d-0001", QUERY)
    refused = shell("upgrade", "flights", "--app", script(signed.base, "needs-drain", name="b.py"), "--timeout", 60)
    assert refused.status == 4, refused
    for words in (("stop", "flights"), ("resume", "flights"), ("stop", "flights")):
        assert shell(*words, "--timeout", 30).status == 0, words
    assert shell("home", "sign", "--json").json["records"] == []
    found = {str(raw.get("kind")): "signature" in raw for _, raw in records(signed.home)}
    controllers = {"StreamRegister", "DeploymentSpec", "LaunchRecord", "RequestRecord", "HomeRecord", "UpgradeStep"}
    assert {kind for kind, is_signed in found.items() if is_signed} >= controllers
    assert {kind for kind, is_signed in found.items() if not is_signed} >= {"Claim", "SnapshotManifest", "Started"}
    assert shell("home", "mirror", "flights", "--to", tmp_path / "mirror").status == 0
    restored = shell("--home", tmp_path / "again", "home", "restore", "--from", tmp_path / "mirror")
    assert restored.status == 0, restored
    assert shell("--home", tmp_path / "again", "home", "sign", "--json").json["records"] == []


def test_nothing_is_launched_from_a_changed_spec(signed: Desk) -> None:
    """The attack: other code for the next attempt of a running stream, put in its record by whoever can write there."""
    assert shell("stop", "flights", "--timeout", 30).status == 0
    evil = b"print('evil')\n"
    digest = hashlib.sha256(evil).hexdigest()
    place = signed.home / "flights" / "artifacts" / digest / "job.py"
    place.parent.mkdir(parents=True)
    place.write_bytes(evil)
    runs_another(spec(signed), application={"name": "job.py", "sha256": digest})
    refused = shell("resume", "flights", "--timeout", 30, "--json")
    assert refused.status != 0
    assert refused.json["error"]["type"] == "SignatureError"
    assert refused.json["error"]["context"]["key"] == "flights/deployments/d-0001/spec.json"
    launches = [raw for _, raw in records(signed.home) if raw.get("kind") == "LaunchRecord"]
    assert len(launches) == 1
    looked = shell("watch", "--once", "--json")
    assert len([raw for _, raw in records(signed.home) if raw.get("kind") == "LaunchRecord"]) == 1, looked


def test_a_record_of_one_stream_is_worth_nothing_in_another(signed: Desk) -> None:
    """Replayed as it is, or with the other stream's name in it."""
    assert shell("deploy", "arrivals", "--app", script(signed.base), "--timeout", 30).status == 0
    other = signed.home / "arrivals" / "stream.json"
    other.write_bytes((signed.home / "flights" / "stream.json").read_bytes())
    assert "belongs elsewhere" in shell("status", "arrivals").err
    rewritten(other, stream_id="arrivals")
    assert "copied from another key" in shell("status", "arrivals").err
    assert shell("status", "flights").status == 0


def test_a_home_is_signed_only_after_it_was_shown(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home from before the key: refused, shown, unchanged until --yes, then used as ever."""
    assert shell("deploy", "flights", "--app", script(desk.base), "--timeout", 30).status == 0
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, KEY)
    refused = shell("status", "flights")
    assert refused.status == 1
    assert "`streamstate home sign`" in refused.err
    before = dict(records(desk.home))
    shown = shell("home", "sign")
    assert "flights/deployments/d-0001/spec.json: DeploymentSpec, it has no signature" in shown.out
    assert '    version.application: {"name": "job.py", "sha256": "' in shown.out
    assert "nothing is signed yet" in shown.out
    assert dict(records(desk.home)) == before
    assert shell("home", "sign", "--rotate", "--yes", "--json").json["signed"] == 0, "none has ever been signed"
    program, *words = shlex.split(shown.out.splitlines()[-1])
    assert program == "streamstate"
    assert shell(*words).status == 0
    assert shell("status", "flights").status == 0
    assert shell("stop", "flights", "--timeout", 30).status == 0
    assert "every record is signed" in shell("home", "sign").out


def test_every_field_of_what_would_be_signed_is_shown(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attacker's value in any field, however deep, is seen before it is believed."""
    assert shell("deploy", "flights", "--app", script(desk.base), "--timeout", 30).status == 0
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, KEY)
    forged = {
        "environment": {"LD_PRELOAD": "/evil/preload.so"},
        "conf": {"spark.driver.extraJavaOptions": "-javaagent:/evil/agent.jar"},
        "packages": ["evil:package:1"],
        "jars": ["https://evil.example/one.jar"],
        "working_folder": "/evil/folder",
    }
    runs_another(spec(desk), **forged)
    shown = shell("home", "sign").out
    [told] = [one for one in shell("home", "sign", "--json").json["records"] if one["kind"] == "DeploymentSpec"]
    for name, value in forged.items():
        assert f"    version.{name}: {json.dumps(value)}\n" in shown
        assert told["record"]["version"][name] == value
    raw = json.loads(spec(desk).read_bytes())
    parts = [f"{name}.{each}" for name in ("version", "start") for each in raw.pop(name)]
    assert [name for name in (*raw, *parts) if f"    {name}: " not in shown] == []


def test_only_the_list_that_was_shown_is_signed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: between the look and the signature a driver writes one more record, or another one in its place."""
    assert shell("deploy", "flights", "--app", script(desk.base), "--timeout", 30).status == 0
    assert shell("stop", "flights", "--timeout", 30).status == 0
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, KEY)
    words = consented()
    honest, before = spec(desk).read_bytes(), dict(records(desk.home))
    more = spec(desk, "d-0007")
    more.parent.mkdir()
    more.write_text(json.dumps({**json.loads(honest), "deployment_id": "d-0007"}))
    for written in (more, spec(desk)):
        refused = shell("home", "sign", *words, "--json")
        assert refused.status == 4
        assert refused.json["error"]["message"] == "these are not the records that were shown: nothing is signed"
        more.unlink(missing_ok=True)
        assert {path: raw for path, raw in records(desk.home) if path != spec(desk)} == {
            path: raw for path, raw in before.items() if path != spec(desk)
        }, written
        runs_another(spec(desk), environment={"LD_PRELOAD": "/evil/preload.so"})
    assert "needs the digest" in shell("home", "sign", "--yes").err
    assert shell("home", "sign", "--yes", "0" * 64).status == 4
    spec(desk).write_bytes(honest)
    assert shell("home", "sign", *words).status == 0
    assert shell("home", "sign", "--json").json["records"] == []


def test_a_key_is_rotated_while_a_stream_runs(signed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are accepted; a forged record is not signed on the way; then the old key is removed."""
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, f"{NEXT} {KEY}")
    assert shell("status", "flights").status == 0
    forged = signed.home / "flights" / "deployments" / "d-0002" / "spec.json"
    forged.parent.mkdir(parents=True)
    forged.write_text(json.dumps({**json.loads(spec(signed).read_bytes()), "deployment_id": "d-0002"}))
    assert shell("home", "sign", "--rotate", "--yes").status == 0
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, NEXT)
    assert shell("stop", "flights", "--timeout", 30).status == 0
    [left] = shell("home", "sign", "--json").json["records"]
    assert left["key"] == "flights/deployments/d-0002/spec.json"
    assert left["state"] == "refused"


def test_a_key_that_is_gone_stops_controllers_and_no_stream(signed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a controller still reports a stream's state, and changes nothing; the driver never needed it."""
    monkeypatch.delenv(SIGNING_KEY_VARIABLE)
    status = shell("status", "flights", "--json")
    assert (status.status, status.json["state"]) == (0, "running")
    refused = shell("upgrade", "flights", "--app", script(signed.base, name="b.py"), "--timeout", 30)
    assert refused.status != 0
    assert "this process has no signing key" in refused.err
    [check] = [one for one in shell("home", "doctor", "--json").json["checks"] if one["name"] == "signing key"]
    assert not check["ok"]
    assert "flights" in check["found"]
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, KEY)
    assert shell("stop", "flights", "--timeout", 30).status == 0


@pytest.mark.parametrize(
    ("key", "signs", "ok", "said"),
    [
        (None, False, True, "whoever can write in this home"),
        (KEY, False, False, "are not signed"),
        (KEY, True, True, "no one without the key is believed"),
        (f"{NEXT} {KEY}", True, True, "with an older one"),
    ],
)
def test_the_doctor_says_what_a_key_or_none_means(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, key: str | None, signs: bool, ok: bool, said: str
) -> None:
    """And counts what is not signed."""
    assert shell("deploy", "flights", "--app", script(desk.base), "--timeout", 30).status == 0
    if signs:
        monkeypatch.setenv(SIGNING_KEY_VARIABLE, KEY)
        assert shell("home", "sign", *consented()).status == 0
    if key is not None:
        monkeypatch.setenv(SIGNING_KEY_VARIABLE, key)
    [check] = [one for one in shell("home", "doctor", "--json").json["checks"] if one["name"] == "signing key"]
    assert (check["ok"], said in check["found"]) == (ok, True), check


def test_no_driver_is_given_the_key(signed: Desk) -> None:
    """Neither by its environment, which it inherits, nor by any file of its launch or of the home."""
    handles = [raw for _, raw in records(signed.home) if raw.get("kind") == "LaunchRecord"]
    pid = handles[0]["data"]["pid"]  # type: ignore[index]
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"STREAMSTATE_LAUNCH_FOLDER" in environ
    assert KEY.encode() not in environ
    files = [path for path in signed.base.rglob("*") if path.is_file()]
    assert any(path.name == "driver.json" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    "words",
    [
        ("--conf", f"spark.x=env://{SIGNING_KEY_VARIABLE}"),
        ("--env", f"TOKEN=env://{SIGNING_KEY_VARIABLE}"),
        ("--env", f"NAME=x{KEY}"),
    ],
)
def test_a_version_that_asks_for_the_key_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    """By a reference, or word for word: it would be in the driver's hands."""
    monkeypatch.setenv(SIGNING_KEY_VARIABLE, KEY)
    refused = shell("deploy", "flights", "--app", script(desk.base), *words, "--timeout", 30)
    assert refused.status == 2
    assert "which no driver may have" in refused.err
    assert KEY not in refused.err


def test_a_secret_that_a_person_names_is_allowed_from_then_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command reports it once; a watcher of this machine reads the same list; what a record names beyond it is not
    looked up."""
    monkeypatch.setenv("PIN", "hunter-of-pin")
    deployed = shell("deploy", "flights", "--app", script(desk.base), "--env", "PIN=env://PIN", "--timeout", 30)
    assert deployed.status == 0, deployed
    assert "allowed for" in deployed.err
    assert "env://PIN" in deployed.err
    assert shell("stop", "flights", "--timeout", 30).status == 0
    assert "allowed for" not in shell("resume", "flights", "--timeout", 30).err
    assert shell("stop", "flights", "--timeout", 30).status == 0
    runs_another(spec(desk), environment={"PIN": "env://HOME"})
    refused = shell("resume", "flights", "--timeout", 30)
    assert refused.status == 2
    assert "this secret is not allowed for this home" in refused.err


def found_module(desk: Desk, body: bytes, name: str = "plugin.py") -> Path:
    """A module as a driver records it."""
    digest = hashlib.sha256(body).hexdigest()
    artifact = desk.home / "flights" / "artifacts" / digest / name
    artifact.parent.mkdir(parents=True, exist_ok=True)
    artifact.write_bytes(body)
    key = hashlib.sha256(name.encode()).hexdigest()[:32]
    record = desk.home / "flights" / "deployments" / "d-0001" / "modules" / f"{key}.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    module = {"name": name, "sha256": digest}
    fields = {"deployment_id": "d-0001", "found_at": "2026-03-01T10:00:00.000Z", "write_id": "w"}
    said = {"kind": "FoundModule", "protocol": NEWEST_PROTOCOL, "stream_id": "flights", "module": module, **fields}
    record.write_text(json.dumps(said))
    return record


def test_a_forged_module_reaches_no_next_attempt(signed: Desk) -> None:
    """It would be code of a different driver in this one. A person may sign it, once it was shown."""
    assert shell("stop", "flights", "--timeout", 30).status == 0
    found_module(signed, b"print('evil')\n")
    refused = shell("resume", "flights", "--timeout", 30)
    assert refused.status == 1
    assert "kind=FoundModule" in refused.err
    assert 'module: {"name": "plugin.py", "sha256": "' in shell("home", "sign").out
    assert shell("home", "sign", *consented()).status == 0
    resumed = shell("resume", "flights", "--timeout", 30)
    assert resumed.status == 0, resumed


def test_a_module_that_lies_beside_the_script_is_believed(signed: Desk) -> None:
    """The controller sees the same file in the folder that the signed spec names, and signs the record itself."""
    assert shell("stop", "flights", "--timeout", 30).status == 0
    (signed.base / "plugin.py").write_bytes(b"RATE = 2\n")
    record = found_module(signed, b"RATE = 2\n")
    resumed = shell("resume", "flights", "--timeout", 30)
    assert resumed.status == 0, resumed
    assert "signature" in json.loads(record.read_bytes())
