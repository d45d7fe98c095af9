"""Options of the YARN launcher, and where ResourceManagers are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from airflow_streamstate.clock import SYSTEM_CLOCK
from airflow_streamstate.errors import InvalidRequestError, UnavailableError
from airflow_streamstate.launch.interface import LaunchPlace
from airflow_streamstate.launch.yarn import YarnLauncher, driver_megabytes, megabytes, tag_of, the_one
from airflow_streamstate.launch.yarn_api import ResourceManager, YarnOptions, addresses_in, read_site
from support.launches import launch_request
from support.loopback import QuietHandler, free_port, served


def site(folder: Path, **values: str) -> Path:
    """A folder with a yarn-site.xml of these properties; ``__`` means a dot."""
    rows = "".join(
        f"<property><name>{name.replace('__', '.')}</name><value>{value}</value></property>"
        for name, value in values.items()
    )
    (folder / "yarn-site.xml").write_text(f"<configuration>{rows}</configuration>")
    return folder


def standby_or_active(state: str) -> ThreadingHTTPServer:
    """A server that answers as a ResourceManager of this HA state does."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            info = {"clusterInfo": {"state": "STARTED", "haState": state, "startedOn": 1}}
            body = json.dumps(info if "info" in self.path else {"apps": None}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def pair() -> Iterator[list[str]]:
    """URLs of a standby and of an active one."""
    with ExitStack() as stack:
        urls = []
        for state in ("STANDBY", "ACTIVE"):
            server = standby_or_active(state)
            stack.enter_context(served(server))
            urls.append(f"http://127.0.0.1:{server.server_address[1]}")
        yield urls


def test_addresses_come_from_the_configuration(tmp_path: Path) -> None:
    """One ResourceManager or several, by http or https, with the defaults of YARN."""
    one = read_site(site(tmp_path, yarn__resourcemanager__hostname="rm.example"))
    assert addresses_in(one) == ("http://rm.example:8088",)
    several = {
        "yarn__http__policy": "HTTPS_ONLY",
        "yarn__resourcemanager__ha__enabled": "true",
        "yarn__resourcemanager__ha__rm-ids": "a, b",
        "yarn__resourcemanager__hostname__a": "one.example",
        "yarn__resourcemanager__webapp__https__address__b": "two.example:1234",
    }
    assert addresses_in(read_site(site(tmp_path, **several))) == (
        "https://one.example:8090",
        "https://two.example:1234",
    )
    named = {"domain": "example", "yarn__resourcemanager__webapp__address": "rm.${domain}:80"}
    assert addresses_in(read_site(site(tmp_path, **named))) == ("http://rm.example:80",)
    assert addresses_in(read_site(site(tmp_path))) == ()


def test_the_active_one_is_asked(pair: list[str]) -> None:
    """A standby and one that is away are passed over; with none active nothing is known."""
    away = f"http://127.0.0.1:{free_port()}"
    manager = ResourceManager([away, *pair])
    assert manager.active == pair[1]
    assert manager.applications("any") == []
    with pytest.raises(UnavailableError, match="no ResourceManager answers") as told:
        ResourceManager([away, pair[0]]).applications("any")
    assert "it is standby" in str(told.value)
    assert "refused" in str(told.value)


def test_bad_options_are_refused_each_with_a_next_step(tmp_path: Path) -> None:
    """Unknown names, impossible values, and a configuration that is none."""
    for raw, words in (
        ({"quue": "x"}, "no such option"),
        ({"queue": ["a"]}, "a text in one line"),
        ({"queue": " x"}, "a text in one line"),
        ({"keytab": __file__}, "needs its principal"),
        ({"tag_prefix": "A,B"}, "prefix of tags"),
        ({"resource_manager": "rm"}, "no address"),
        ({"resource_manager": ["rm:8088", "file:///etc"]}, "no address"),
    ):
        with pytest.raises(InvalidRequestError, match=words) as told:
            YarnOptions.from_options(raw, {})
        assert told.value.next_step
    with pytest.raises(InvalidRequestError, match="configuration of the YARN cluster"):
        YarnOptions.from_options({}, {}).addresses()
    for body in (None, "no XML"):
        if body is not None:
            (tmp_path / "yarn-site.xml").write_text(body)
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            read_site(tmp_path)


def test_an_airflow_connection_is_refused(tmp_path: Path) -> None:
    """It would name a cluster that no driver is sent to."""
    request = launch_request(tmp_path, "", launcher="yarn", master="yarn", conn_id="yarn_default")
    launcher = YarnLauncher(SYSTEM_CLOCK)
    for act in (launcher.check, launcher.launch):
        with pytest.raises(InvalidRequestError, match="YARN takes no Airflow connection") as told:
            act(request)
        assert "hadoop_conf_dir" in told.value.next_step


def test_a_tag_is_of_one_stream_and_one_key() -> None:
    """Whatever their names are: never the same tag for two."""
    places = [
        LaunchPlace(scope=scope, launch_key=key, folder="/x")
        for scope in ("home/a", "home/b")
        for key in ("d-0001-a0001", "d-0001-a0002")
    ]
    assert len({tag_of(place, "streamstate") for place in places}) == len(places)
    long = LaunchPlace(scope="h/" + "s" * 63, launch_key="d-0001-a0001", folder="/x")
    assert len(tag_of(long, "streamstate")) <= 100
    assert tag_of(long, "streamstate") == tag_of(long, "streamstate").lower()


def test_memory_is_reckoned_as_spark_does() -> None:
    """Heap and what is added to it: a tenth, 384 MiB at least, or what the configuration sets."""
    assert [megabytes(text) for text in ("512", "512m", "1g", "2gb", "1024k", "many")] == [512, 512, 1024, 2048, 1, 0]
    assert driver_megabytes({}) == 1408
    assert driver_megabytes({"spark.driver.memory": "10g"}) == 11264
    assert driver_megabytes({"spark.driver.memory": "1g", "spark.driver.memoryOverhead": "100m"}) == 1124


def test_a_path_is_the_same_for_every_later_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers are launched from other folders later, so a relative one is refused where it still could be read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ada.keytab").write_bytes(b"")
    with pytest.raises(InvalidRequestError, match="must be absolute"):
        YarnOptions.from_options({"resource_manager": "rm:8088", "keytab": "ada.keytab", "principal": "ada"}, {})


def test_a_machine_that_only_asks_needs_no_file_of_a_launch(tmp_path: Path) -> None:
    """A launch needs keytab and Python environment on its machine, before it but for what it brings; a URI it does
    not."""
    keytab, launch = tmp_path / "ada.keytab", tmp_path / "launch"
    env = launch / "code" / "env.tar.gz"
    raw = {"keytab": str(keytab), "principal": "ada", "python_env": str(env)}
    options = YarnOptions.from_options(raw, {})
    with pytest.raises(InvalidRequestError, match="is not there"):
        options.need_files(str(launch))
    keytab.write_bytes(b"")
    options.need_files(str(launch))
    with pytest.raises(InvalidRequestError, match="is not there") as told:
        options.need_files()
    assert told.value.context["option"] == "python_env"
    for uri in ("hdfs:///envs/e.tar.gz", "file:/envs/e.tar.gz", "local:/envs/e.tar.gz", "s3a://b/e.tar.gz"):
        YarnOptions.from_options({**raw, "python_env": uri}, {}).need_files()


def test_of_several_applications_the_one_that_may_work_is_the_driver() -> None:
    """Neither one that lost its claim, nor one that failed before it while another's end is not proven (1a.8)."""

    def ended(number: int, told: str) -> dict[str, str]:
        return {"id": f"application_1_{number}", "state": "FAILED", "finalStatus": "FAILED", "diagnostics": told}

    failed, lost = ended(1, "User application exited with status 1"), ended(2, "User application exited with status 4")
    unproven = ended(3, "ApplicationMaster for attempt timed out")
    running = {"id": "application_1_4", "state": "RUNNING", "finalStatus": "UNDEFINED"}
    assert the_one([failed, lost]) == failed
    assert the_one([failed, unproven]) == unproven
    assert the_one([failed, unproven, running]) == running
    assert the_one([lost]) == lost
    assert the_one([]) is None
