"""What a script sets in its own code: what wins over the deployment's is reported, and what Spark reads too late."""

from __future__ import annotations

from airflow_streamstate.driver.start.start_checks import launch_keys, notes_on_own_settings

MASTER = "spark.master"


def notes(
    conf: dict[str, str], in_force: dict[str, str], at_launch: dict[str, str], master: str = "local[1]"
) -> list[str]:
    return list(notes_on_own_settings(master, conf, in_force, at_launch))


def test_a_script_without_settings_of_its_own_has_no_notes() -> None:
    """Spark's own additions to Java options and secrets that were looked up are no settings of the script."""
    java, password = "spark.driver.extraJavaOptions", "spark.my.password"
    conf = {"spark.sql.shuffle.partitions": "2", java: "-Da=b", password: "env://PASSWORD", "spark.driver.memory": "1g"}
    launched = {**conf, MASTER: "local[1]", password: "hunter2"}
    in_force = {**launched, java: "--add-opens=x -Da=b", "spark.app.name": "job"}
    assert notes(conf, in_force, launched) == []


def test_the_script_wins_with_its_own_master_and_settings() -> None:
    """The master of a cluster has to be named to the deployment, too: executors need the modules."""
    conf = {"spark.sql.shuffle.partitions": "2"}
    launched = {**conf, MASTER: "local[1]"}
    in_force = {MASTER: "local[2]", "spark.sql.shuffle.partitions": "5"}
    assert notes(conf, in_force, launched) == [
        "the script sets its own master local[2], which wins over local[1] of the deployment",
        "the script sets spark.sql.shuffle.partitions=5, which wins over 2 of the deployment",
    ]
    (said,) = notes({}, {MASTER: "spark://host:7077"}, launched)
    assert "give that as --master" in said


def test_the_master_of_a_connection_is_that_of_the_launch() -> None:
    """The deployment names none then."""
    (said,) = notes({}, {MASTER: "local[2]"}, {MASTER: "spark://host:7077"}, master="")
    assert "wins over spark://host:7077" in said
    assert notes({}, {MASTER: "spark://host:7077"}, {MASTER: "spark://host:7077"}, master="") == []


def test_what_spark_reads_only_at_its_launch_comes_too_late() -> None:
    """Also where the deployment gives another value: then that one is in force."""
    packages, memory = "spark.jars.packages", "spark.driver.memory"
    said = notes({memory: "1g"}, {packages: "org:kafka:4.2.0", memory: "8g"}, {memory: "1g"})
    assert [text.partition(";")[2] for text in said] == [" give it by --conf", " give it by --packages"]
    assert all("does not read it any more" in text for text in said)


def test_values_under_names_of_secrets_are_hidden() -> None:
    """Notes are read in logs, events and plans."""
    (said,) = notes({"spark.my.token": "first-1"}, {"spark.my.token": "second-2"}, {})
    assert "first-1" not in said
    assert "second-2" not in said


def test_the_keys_that_are_asked_for_hold_the_deployments_own() -> None:
    """And the master, and what comes too late."""
    assert {MASTER, "spark.mine", "spark.jars.packages"} <= set(launch_keys({"spark.mine": "1"}))
