"""The parsers of rendered fields."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_streamstate.cli.start import launcher_of
from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.hooks.rendered import (
    as_moment,
    as_seconds,
    is_given,
    launcher_choice,
    number,
    one_of,
    optional_text,
    term_value,
    text_mapping,
    texts,
    texts_by_name,
    values_by_name,
    whole_number,
    yes_or_no,
)
from airflow_streamstate.protocol.policies import AlertRules, RestartPolicy, RetentionPolicy
from airflow_streamstate.protocol.settings import AgentSettings
from airflow_streamstate.protocol.terms.declaration import terms_of
from airflow_streamstate.protocol.terms.version import LauncherChoice, Version


@pytest.mark.parametrize("value", [None, "", "None", "  "])
def test_a_missing_id_is_none_however_it_was_rendered(value: Any) -> None:
    """Plain rendering turns None into a text."""
    assert optional_text(value) is None


def test_an_id_that_native_rendering_took_for_a_number_is_a_text_again() -> None:
    """A stream may be called 2024."""
    assert optional_text(2024) == "2024"


@pytest.mark.parametrize("value", [["a", 1], ("a", 1), '["a", 1]'])
def test_a_list_is_a_list_natively_or_as_json(value: Any) -> None:
    """Both kinds of rendering work."""
    assert texts(value, "arguments") == ("a", "1")


@pytest.mark.parametrize("value", ["['a']", "a b", "[1", {"a": 1}, 5])
def test_what_is_no_list_is_refused_with_the_way_out(value: Any) -> None:
    """A list's Python text, from plain rendering, would be one odd argument."""
    with pytest.raises(InvalidRequestError, match="render_template_as_native_obj"):
        texts(value, "arguments")


@pytest.mark.parametrize("value", [None, "", "None"])
def test_nothing_is_an_empty_list_and_an_empty_mapping(value: Any) -> None:
    """A parameter may be left out."""
    assert texts(value, "files") == ()
    assert text_mapping(value, "conf") == {}


def test_booleans_and_numbers_are_written_as_spark_writes_them() -> None:
    """Python's True is Spark's true."""
    assert text_mapping({"a": True, "b": 2}, "conf") == {"a": "true", "b": "2"}
    assert text_mapping('{"a": "x"}', "conf") == {"a": "x"}


def test_a_mapping_that_is_none_is_refused_without_its_values() -> None:
    """Configuration may be secret."""
    with pytest.raises(InvalidRequestError) as raised:
        text_mapping('{"spark.secret": "hunter2"', "conf")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(InvalidRequestError, match="no mapping"):
        text_mapping(["hunter2"], "conf")


@pytest.mark.parametrize(
    ("value", "meant"), [(True, True), ("True", True), ("false", False), (None, False), ("", False)]
)
def test_yes_or_no_in_any_rendering(value: Any, *, meant: bool) -> None:
    """ "False" is a true text in Python."""
    assert yes_or_no(value, "allow_state_loss") is meant


def test_neither_yes_nor_no_is_refused() -> None:
    """Dropping state is never a guess (Law 16)."""
    with pytest.raises(InvalidRequestError, match="neither true nor false"):
        yes_or_no("perhaps", "allow_state_loss")


@pytest.mark.parametrize("value", ["x", "0", -1, "inf", None, 1e9])
def test_a_wait_needs_a_bounded_number_of_seconds(value: Any) -> None:
    """Every wait has a deadline (Law 6)."""
    with pytest.raises(InvalidRequestError, match="number of seconds"):
        as_seconds(value, "timeout_seconds")
    assert as_seconds("2.5", "timeout_seconds") == 2.5


def test_a_value_that_is_not_known_is_refused_with_those_that_are() -> None:
    """The error lists them."""
    with pytest.raises(InvalidRequestError, match="Use nothing, restore"):
        one_of("resotre", (None, "restore"), "start")
    assert one_of("restore", (None, "restore"), "start") == "restore"


@pytest.mark.parametrize(("value", "expected"), [(3, 3), ("12", 12)])
def test_a_whole_number_is_one_natively_or_as_text(value: Any, expected: int) -> None:
    """Plain rendering gives text."""
    assert whole_number(value, "healthy_batches") == expected


@pytest.mark.parametrize("value", ["", "1.5", "three", None])
def test_what_is_no_whole_number_is_refused(value: Any) -> None:
    """By the name of its field."""
    with pytest.raises(InvalidRequestError, match="healthy_batches"):
        whole_number(value, "healthy_batches")


@pytest.mark.parametrize(
    "value", ["2026-03-01T10:05:00Z", "2026-03-01 11:05:00+01:00", datetime(2026, 3, 1, 10, 5, tzinfo=timezone.utc)]
)
def test_a_moment_is_one_natively_or_as_text(value: Any) -> None:
    """Whatever Airflow makes of a template; nothing is nothing."""
    assert as_moment(value, "requested_at") == datetime(2026, 3, 1, 10, 5, tzinfo=timezone.utc)
    assert as_moment("None", "requested_at") is None


@pytest.mark.parametrize("value", ["yesterday", "2026-03-01T10:05:00", 5])
def test_what_is_no_moment_is_refused_by_the_name_of_its_field(value: Any) -> None:
    """A time without a zone would be another one elsewhere."""
    with pytest.raises(InvalidRequestError, match="requested_at"):
        as_moment(value, "requested_at")


@pytest.mark.parametrize(("value", "meant"), [(2, 2.0), ("2.5", 2.5)])
def test_a_number_is_one_natively_or_as_text(value: Any, meant: float) -> None:
    """Plain rendering gives text."""
    assert number(value, "roll_back_if_slower") == meant


def test_what_is_no_number_is_refused() -> None:
    """By its field."""
    with pytest.raises(InvalidRequestError, match="roll_back_if_slower"):
        number("twice", "roll_back_if_slower")


@pytest.mark.parametrize(("value", "meant"), [(None, False), ("", False), (" None ", False), ((), True), (0, True)])
def test_an_empty_field_is_not_given(value: Any, *, meant: bool) -> None:
    """However it was rendered; an empty list and a zero are values."""
    assert is_given(value) is meant


@pytest.mark.parametrize(
    ("cls", "value", "meant"),
    [
        (
            RestartPolicy,
            {"on_failure": "restart", "max_restarts": "3", "backoff_factor": "1.5", "restore_lost_checkpoint": "true"},
            {"on_failure": "restart", "max_restarts": 3, "backoff_factor": 1.5, "restore_lost_checkpoint": True},
        ),
        (RestartPolicy, '{"hung_after_seconds": 0}', {"hung_after_seconds": 0.0}),
        (
            AlertRules,
            {"lag_over": "none", "no_commit_seconds": 5, "off": "driver_dead, lag"},
            {"lag_over": None, "no_commit_seconds": 5.0, "off": ("driver_dead", "lag")},
        ),
        (AlertRules, {"off": ["lag"], "lag_over": None}, {"off": ("lag",), "lag_over": None}),
        (RetentionPolicy, {"keep": "5", "at_mirrors": "True"}, {"keep": 5, "at_mirrors": True}),
        (AgentSettings, {"commit_offsets_to_group": "g", "keep_running": True}, None),
        (RetentionPolicy, {"kept": "5"}, {"kept": "5"}),
        (RetentionPolicy, {}, {}),
    ],
)
def test_values_by_name_are_those_of_the_terms(cls: type, value: Any, meant: Any) -> None:
    """Each by its own kind; a name that is not known stays, and its class refuses it."""
    assert values_by_name(cls, value, "field") == (value if meant is None else meant)


def test_a_value_by_name_is_refused_by_its_name() -> None:
    """The field alone would not show which."""
    with pytest.raises(InvalidRequestError, match=r"alert_rules\.lag_over"):
        values_by_name(AlertRules, {"lag_over": "many"}, "alert_rules")


def test_a_value_that_renders_to_nothing_is_not_given() -> None:
    """So that a template without a value switches nothing off; a threshold may be none."""
    given = {"restore_lost_checkpoint": None, "max_restarts": "7", "on_failure": "restart\n"}
    assert values_by_name(RestartPolicy, given, "p") == {"max_restarts": 7, "on_failure": "restart"}
    assert values_by_name(AlertRules, {"lag_over": None}, "alert_rules") == {"lag_over": None}


def test_offsets_are_texts_or_json_by_name() -> None:
    """An object is written as JSON, as in a file of offsets; a name needs its list."""
    assert texts_by_name('{"a": [{"x": 1}, "b"]}', "offsets") == {"a": ('{"x":1}', "b")}
    for wrong in (None, [], "3"):
        with pytest.raises(InvalidRequestError, match="no list for a name"):
            texts_by_name({"a": wrong}, "offsets")


def test_a_part_that_is_whole_is_taken_as_it_is() -> None:
    """Settings are values by name, or the object."""
    one = next(each for each in terms_of(Version) if each.name == "settings")
    assert term_value(one, AgentSettings(keep_running=True), "settings") == AgentSettings(keep_running=True)
    assert term_value(one, '{"keep_running": true}', "settings") == {"keep_running": True}


def test_a_launcher_is_what_is_left_of_its_fields() -> None:
    """An option that renders to nothing was not given."""
    options = {"region": "None", "image": "spark:1", "queue": None}
    assert launcher_choice("kubernetes", options, "None", "") == LauncherChoice("kubernetes", {"image": "spark:1"})
    assert launcher_choice(None, None, None, "None") is None
    assert launcher_choice("None", '{"image": "x"}', "k8s", {"spec": {}}) == LauncherChoice(
        "", {"image": "x", "pod_template": {"spec": {}}}, "k8s"
    )
    with pytest.raises(InvalidRequestError, match="no mapping"):
        launcher_choice("kubernetes", ["image"], None, None)


def test_a_dag_and_a_shell_ask_for_the_same_launcher() -> None:
    """A stream that is deployed by one and asked for by the other is not deployed again (Law 2)."""
    of_a_dag = {"queue": 5, "is_new": True, "labels": {"team": 7}, "volumes": ["claim:data:/data"]}
    of_a_shell = {"queue": "5", "is_new": "true", "labels": '{"team": 7}', "volumes": '["claim:data:/data"]'}
    asked = launcher_choice("any", of_a_dag, None, None)
    assert asked == launcher_of({"launcher": "any", "launcher_options": of_a_shell})
    assert asked == launcher_choice("any", of_a_shell, None, None)
