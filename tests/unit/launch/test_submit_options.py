"""Options from more than one side."""

from __future__ import annotations

import pytest

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.launch.submit_options import SubmitOptions, absorb_conf, read_prefix


def test_lists_are_joined_and_single_values_are_the_later_ones() -> None:
    """A connection's jars stay alongside the request's; where both set one key, the request has its way."""
    first = SubmitOptions(conf={"spark.a": "1", "spark.b": "1"}, jars=("a.jar",), master="yarn")
    joined = first.joined_with(SubmitOptions(conf={"spark.b": "2"}, jars=("b.jar",), packages=("g:a:1",)))
    assert joined == SubmitOptions(
        conf={"spark.a": "1", "spark.b": "2"}, jars=("a.jar", "b.jar"), packages=("g:a:1",), master="yarn"
    )


def test_lists_in_the_configuration_are_not_lost() -> None:
    """``--py-files`` would replace ``spark.submit.pyFiles``: what it holds moves to the list."""
    conf = {"spark.submit.pyFiles": "a.zip, b.zip", "spark.jars": "", "spark.x": "y"}
    assert absorb_conf(SubmitOptions(conf=conf, py_files=("c.zip",))) == SubmitOptions(
        conf={"spark.x": "y"}, py_files=("a.zip", "b.zip", "c.zip")
    )


def test_a_prefix_is_taken_apart() -> None:
    """What would be replaced or seen is taken out of a command; the rest stays word for word, in its order."""
    prefix = [
        *("--master", "yarn", "--queue", "q", "--verbose", "--conf", "spark.a=b=c", "-c", "spark.d=e"),
        *("--jars=a.jar,b.jar", "--py-files", "x.zip", "--principal=p", "--supervise"),
    ]
    rest, options = read_prefix(prefix)
    assert rest == ("--master", "yarn", "--queue", "q", "--verbose", "--principal=p", "--supervise")
    assert options == SubmitOptions(
        conf={"spark.a": "b=c", "spark.d": "e"}, jars=("a.jar", "b.jar"), py_files=("x.zip",), master="yarn"
    )


def test_a_properties_file_and_a_deploy_mode_are_noticed() -> None:
    """Both change what the launcher has to set itself."""
    rest, options = read_prefix(["--properties-file", "/x", "--deploy-mode", "cluster"])
    assert rest == ("--properties-file", "/x")
    assert options.properties_file
    assert options.conf == {"spark.submit.deployMode": "cluster"}


def test_a_conf_that_is_none_is_refused_without_its_value() -> None:
    """The error names the key, never a value."""
    with pytest.raises(InvalidRequestError, match="no KEY=VALUE"):
        read_prefix(["--conf", "spark.a"])


def test_an_option_without_its_value_stays() -> None:
    """What is not understood is left to spark-submit to refuse."""
    assert read_prefix(["odd", "--queue"]) == (("odd", "--queue"), SubmitOptions())
