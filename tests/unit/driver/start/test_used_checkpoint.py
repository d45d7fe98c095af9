"""A query that ran without streamstate does not start again unless that was asked for (Law 5)."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_streamstate.cli.start import adopt
from airflow_streamstate.driver.attempt.ports import OwnCheckpoint
from airflow_streamstate.driver.start.start_checks import adopt_command
from airflow_streamstate.errors import StartRefusedError
from airflow_streamstate.protocol.commands import StopRequest
from airflow_streamstate.protocol.events import Failed, Noted, QueryStarted, Stopped
from airflow_streamstate.protocol.records import StartPlan
from airflow_streamstate.protocol.terms.version import LauncherChoice
from support.recorded_specs import with_version
from support.simulated_driver import SimulatedDriver, SimulatedStream, make_plan, waiting_script

USED = OwnCheckpoint("/data/ckpt/counts", 3)


def refused(stream: SimulatedStream, own: OwnCheckpoint, name: str = "counts") -> StartRefusedError:
    """What the script meets at its first start."""
    found: list[StartRefusedError] = []

    def script(driver: SimulatedDriver) -> None:
        with pytest.raises(StartRefusedError) as caught:
            driver.start(make_plan(20, own_checkpoint=own), name)
        assert driver.startables[-1].runs == []
        found.append(caught.value)
        raise caught.value

    assert stream.run(script) == 1
    return found[0]


def test_the_first_start_of_a_query_that_ran_before_is_refused(stream: SimulatedStream) -> None:
    """Nothing runs, and the next step is the whole command."""
    error = refused(stream, USED)
    assert error.context["checkpoint"] == "/data/ckpt/counts"
    assert error.context["committed_batch_id"] == 3
    said = stream.events_of(Failed)[0]
    assert (said.refuses_start, said.next_step) == (True, error.next_step)
    assert "`streamstate adopt flights --checkpoint /data/ckpt/counts --stopped --app job.py" in said.next_step
    assert "--start fresh" in said.next_step
    assert stream.events_of(QueryStarted) == []
    assert not list(stream.checkpoints.list_objects("flights/deployments/d-0001/checkpoints/"))


def test_the_command_shows_no_secret() -> None:
    """It repeats the settings of the deployment, of which one may be a literal secret that was allowed."""
    stream = SimulatedStream()
    stream.deploy(conf={"spark.hadoop.fs.s3a.secret.key": "hunter2-hunter2", "spark.sql.shuffle.partitions": "2"})
    refused(stream, USED)
    said = stream.events_of(Failed)[0]
    assert "--conf spark.sql.shuffle.partitions=2" in said.next_step
    assert "hunter2" not in said.next_step + said.error + said.traceback + " ".join(stream.said)


def test_a_start_that_was_asked_to_begin_at_the_beginning_does() -> None:
    """``--start fresh`` is the consent; a resume of that deployment has it, too."""
    stream = SimulatedStream()
    stream.deploy(start=StartPlan("fresh", begins_anew=True))
    stream.order_at(3.0, StopRequest)
    assert stream.run(waiting_script(make_plan(20, own_checkpoint=USED))) == 0
    assert stream.events_of(QueryStarted)[0].how == "fresh"


@pytest.mark.parametrize("own", [None, OwnCheckpoint("/data/ckpt/counts")], ids=["none", "never committed"])
def test_a_checkpoint_without_a_committed_batch_is_no_matter(
    stream: SimulatedStream, own: OwnCheckpoint | None
) -> None:
    """It was made by a start that wrote nothing."""
    stream.order_at(3.0, StopRequest)
    assert stream.run(waiting_script(make_plan(20, own_checkpoint=own))) == 0
    assert stream.events_of(QueryStarted)[0].repairs == ()


def test_a_checkpoint_that_cannot_be_read_is_named_and_refuses_nothing(stream: SimulatedStream) -> None:
    """The deploy continues; a person looks."""
    stream.order_at(3.0, StopRequest)
    own = OwnCheckpoint("s3://away/counts", unread_reason="no such bucket")
    assert stream.run(waiting_script(make_plan(20, own_checkpoint=own))) == 0
    assert any("s3://away/counts could not be read (no such bucket)" in note.text for note in stream.events_of(Noted))
    assert any("no such bucket" in word for word in stream.events_of(QueryStarted)[0].repairs)


def test_what_the_stream_has_run_goes_on_whatever_its_own_checkpoint_holds(stream: SimulatedStream) -> None:
    """The script keeps its location for ever: a resume and a next version never look at it."""
    plan = make_plan(400)
    stream.order_at(3.0, StopRequest)
    assert stream.run(waiting_script(plan)) == 0
    snapshot_id = stream.events_of(Stopped)[0].snapshot_id
    plan.own_checkpoint = USED
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001"))
    stream.order_at(3.0, StopRequest, "d-0002")
    assert stream.run(waiting_script(plan), "d-0002") == 0
    assert stream.events_of(QueryStarted, "d-0002")[0].how == "restored"


def test_a_new_query_of_a_later_version_is_looked_at(stream: SimulatedStream) -> None:
    """``--allow-new-query`` means that the snapshot does not know it, not that its rows may come twice."""
    stream.order_at(3.0, StopRequest)
    assert stream.run(waiting_script(make_plan(400))) == 0
    snapshot_id = stream.events_of(Stopped)[0].snapshot_id
    stream.deploy(2, StartPlan("restore", snapshot_id, "d-0001", allow_new_queries=("raw",)))

    def script(driver: SimulatedDriver) -> None:
        with pytest.raises(StartRefusedError) as caught:
            driver.start(make_plan(20, own_checkpoint=USED), "raw")
        assert "a checkpointLocation that no query has used" in caught.value.next_step
        assert "raw=/data/ckpt/counts" in caught.value.next_step

    assert stream.run(script, "d-0002") == 0


def test_other_used_folders_are_named_for_the_queries_that_follow(stream: SimulatedStream) -> None:
    """The first start is refused, and the script never comes to the second."""
    error = refused(stream, replace(USED, others=("/data/ckpt/raw",)))
    assert "add --checkpoint NAME=URI; batches are also in /data/ckpt/raw" in error.next_step


def test_a_place_that_no_store_reads_is_copied_first(stream: SimulatedStream) -> None:
    """Spark reads HDFS, an adoption does not."""
    error = refused(stream, replace(USED, uri="hdfs://names/ckpt/counts"))
    assert "copy the folder" in error.next_step
    assert "--checkpoint counts=FOLDER --stopped" in error.next_step


def test_what_ran_beside_it_is_removed_first(stream: SimulatedStream) -> None:
    """A stream that has run a query is not adopted."""

    def script(driver: SimulatedDriver) -> None:
        driver.start(make_plan(20), "raw")
        with pytest.raises(StartRefusedError) as caught:
            driver.start(make_plan(20, own_checkpoint=USED, fingerprint="other"), "counts")
        assert caught.value.next_step.startswith("This script has started raw before: first `streamstate retire")

    stream.run(script)


def test_the_command_has_all_options_that_adopt_knows(stream: SimulatedStream) -> None:
    """Whatever was given to deploy, word for word for a shell."""
    spec = with_version(
        stream.control.spec("d-0001"),
        script_path="/jobs/my job.py",
        arguments=("--in", "a b", "env://KEY"),
        conf={"spark.a": "x y"},
        environment={"E": "1"},
        packages=("g:a:1",),
        jars=("s3://b/x.jar",),
        version_label="v1",
        working_folder="/w",
        on_query_failure="fail",
        launcher=LauncherChoice("ssh", {"host": "h", "tolerations": [{"key": "x"}]}),
        settings=replace(stream.control.spec("d-0001").version.settings, exit_grace_seconds=7.0, keep_running=True),
    )
    words = shlex.split(adopt_command(spec, "memory://home", "counts", "/c/other"))
    assert words[:2] == ["streamstate", "adopt"]
    context = adopt.make_context("adopt", words[2:])
    given: Callable[[str], object] = context.params.__getitem__
    assert given("foreign") == ("counts=/c/other",)
    assert given("application") == "/jobs/my job.py"
    assert given("conf") == {"spark.a": "x y"}
    assert given("settings") == {"exit_grace_seconds": "7"}
    assert given("launcher_options") == {"host": "h", "tolerations": '[{"key": "x"}]'}
    assert given("keep_running") is True
    assert given("master") == "local[2]"
    assert given("is_stopped") is True
