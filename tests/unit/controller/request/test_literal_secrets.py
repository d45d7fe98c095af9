"""Which values look like literal secrets, and which do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_streamstate.controller.request.patch import (
    check_local_paths,
    check_plain_uris,
    check_secrets,
    is_literal_secret,
)
from airflow_streamstate.controller.request.requests import deploy_request
from airflow_streamstate.errors import InvalidRequestError

SECRETS = [
    ("spark.hadoop.fs.s3a.secret.key", "abc"), ("spark.hadoop.fs.s3a.access.key", "AKIA"),
    ("spark.hadoop.fs.s3a.session.token", "abc"), ("spark.ssl.keyPassword", "abc"),
    ("spark.authenticate.secret", "abc"),
    ("spark.hadoop.fs.azure.account.key.x.dfs.core.windows.net", "abc"),
    ("spark.hadoop.fs.azure.account.oauth2.client.secret", "abc"), ("spark.kubernetes.authenticate.oauthToken", "abc"),
    ("spark.sql.catalog.c.credential", "id:abc"), ("spark.sql.catalog.c.s3.secret-access-key", "abc"),
    ("spark.kafka.sasl.jaas.config", "…required username=a;"), ("spark.my.password", "123456"),
    ("DB_PASSWORD", "abc"), ("AWS_SECRET_ACCESS_KEY", "abc"), ("API_KEY", "abc"), ("SIGNING_KEY", "abc"),
    ("GITHUB_TOKEN", "abc"), ("--token", "abc"), ("--db-passwd", "abc"), ("--max-tokens", "abc"),
    ("spark.my.url", "postgresql://ada:abc@host/db"), ("DATABASE_URL", "redis://:abc@host"),
]  # fmt: skip
SETTINGS = [
    ("spark.hadoop.fs.s3a.aws.credentials.provider", "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"),
    ("spark.authenticate.secret.file", "/run/secret"), ("spark.authenticate.secretBitLength", "256"),
    ("spark.security.credentials.hive.enabled", "false"), ("spark.security.credentials.renewalRatio", "0.75"),
    ("spark.kafka.clusters.a.sasl.token.mechanism", "SCRAM-SHA-512"), ("spark.sql.catalog.c.rest.auth.type", "oauth2"),
    ("spark.hadoop.hadoop.security.credential.provider.path", "jceks://file/x"), ("spark.authenticate", "true"),
    ("spark.kubernetes.driver.secrets.spark-secret", "/etc/secrets"),
    ("spark.kubernetes.executor.secretKeyRef.PASSWORD", "name:key"), ("spark.ssl.keyStore", "/x.jks"),
    ("spark.hadoop.fs.azure.account.auth.type.x.dfs.core.windows.net", "OAuth"),
    ("spark.hadoop.fs.azure.sas.token.provider.type", "a.b.C"), ("spark.io.encryption.keySizeBits", "128"),
    ("spark.hadoop.fs.s3a.encryption.key", "arn:aws:kms:eu-west-1:1:key/x"),
    ("spark.sql.catalog.c.token-refresh-enabled", "true"),
    ("spark.kubernetes.authenticate.submission.oauthTokenFile", "/x"), ("spark.sql.streaming.stateStore.key", "x"),
    ("spark.sql.catalog.c.s3.access-key-id", "AKIA"), ("spark.sql.sources.bucketing.key", "x"), ("KEY", "x"),
    ("spark.sql.shuffle.partitions", "2"), ("--key-column", "id"), ("--primary-key", "id"), ("--tokenizer", "bert"),
    ("--max-tokens", "512"), ("--password-file", "/run/p"), ("--author", "ada"), ("PARTITION_KEY", "origin"),
    ("TOKEN_URL", "https://h/token"), ("DB_PASSWORD", "env://P"), ("--token", "secret://airflow-variable/t"),
    ("PASSWORD", ""), ("spark.hadoop.fs.gs.auth.service.account.json.keyfile", "/k.json"),
    ("spark.hadoop.fs.gs.auth.service.account.email", "a@b"), ("--max-token-count", "512"),
    ("spark.hadoop.fs.gs.auth.access.token.provider.impl", "a.b.C"), ("--token-limit", "9"),
    ("spark.hadoop.fs.s3a.delegation.token.binding", "a.b.C"),
    ("spark.kafka.clusters.a.auth.bootstrap.servers", "h:9092"), ("spark.network.auth.rpcTimeout", "120s"),
    ("spark.kubernetes.kerberos.tokenSecret.itemKey", "hadoop-token"), ("SSH_AUTH_SOCK", "/run/x"),
    ("GOOGLE_APPLICATION_CREDENTIALS", "/key.json"), ("spark.executorEnv.GOOGLE_APPLICATION_CREDENTIALS", "/key.json"),
    ("--auth-mode", "iam"), ("AUTH_METHOD", "iam"), ("--secret-scope", "kv"), ("--secret-arn", "arn:aws:x"),
    ("--password-env", "DB_PW"), ("spark.network.auth.maxRetries", "3"), ("--pass-through", "a"),
    ("spark.sql.catalog.c.rest.auth.basic.username", "ada"),
    ("spark.redaction.regex", "(?i)secret"), ("--passes", "3"), ("spark.hadoop.fs.defaultFS", "abfss://container@account"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), SECRETS)
def test_secrets_that_are_written_down_are_known(name: str, value: str) -> None:
    """Spark's, Hadoop's, Kafka's, Iceberg's, a shell's; and passwords in URIs."""
    assert is_literal_secret(name, value)


@pytest.mark.parametrize(("name", "value"), SETTINGS)
def test_settings_about_secrets_are_none(name: str, value: str) -> None:
    """A file, a class, a switch, a number of tokens, a reference."""
    assert not is_literal_secret(name, value)


def test_each_place_is_refused_by_its_name_and_never_by_its_value() -> None:
    """Configuration, environment, arguments in each form."""
    arguments = ["--password=hunter2", "--token", "hunter2", "in", "https://u:hunter2@h/x"]
    with pytest.raises(InvalidRequestError, match="look like secrets") as raised:
        check_secrets({"spark.a.secret": "hunter2"}, arguments, {"PIN_PWD": "hunter2"}, may_be_literal=False)
    assert raised.value.context["names"] == ["--password", "--token", "PIN_PWD", "argument 5", "spark.a.secret"]
    assert "hunter2" not in str(raised.value)
    check_secrets({"spark.a.secret": "hunter2"}, arguments, {"PIN_PWD": "hunter2"}, may_be_literal=True)


@pytest.mark.parametrize(
    ("conf", "environment"),
    [
        ({"spark.driver.extraJavaOptions": "-Da=b -Djavax.net.ssl.trustStorePassword=hunter2"}, {}),
        ({"spark.executor.extraJavaOptions": "env://OPTIONS"}, {}),
        ({"spark.jars.packages": "env://PACKAGES"}, {}),
        ({"spark.executorEnv.JAVA_TOOL_OPTIONS": "env://OPTIONS"}, {}),
        ({"spark.executorEnv.JDK_JAVA_OPTIONS": "-Da=b -Dx.password=hunter2"}, {}),
        ({"spark.executorEnv.SPARK_DIST_CLASSPATH": "env://CLASSES"}, {}),
        ({"spark.network.crypto.key": "env://KEY"}, {}),
        ({"spark.network.crypto.customer.password": "hunter2"}, {}),
        ({"spark.rpc.proxy": "https://me:hunter2@proxy:8080"}, {}),
        ({"spark.rpc.customer": "secret://airflow-variable/x"}, {}),
        ({"spark.authenticate.secret.file": "env://FILE"}, {}),
        ({"spark.auth.token": "env://TOKEN"}, {}),
        ({"spark.ssl.rpc.keyStore": "env://STORE"}, {}),
        ({"spark.customer.port": "secret://airflow-connection/customer#port"}, {}),
        ({}, {"JAVA_TOOL_OPTIONS": "-Dpassword=hunter2"}),
        ({}, {"SPARK_SUBMIT_OPTS": "secret://airflow-variable/x"}),
    ],
)
def test_what_java_is_told_on_its_command_line_holds_no_secret(
    conf: dict[str, str], environment: dict[str, str]
) -> None:
    """The driver's and the executors' options, and the variables that Java prints: allowed by nothing."""
    with pytest.raises(InvalidRequestError, match="command line") as raised:
        check_secrets(conf, (), environment, may_be_literal=True)
    assert "hunter2" not in str(raised.value)


def test_references_that_executors_are_handed_otherwise_pass() -> None:
    """Their variables, Spark's own secret, passwords of key stores; and what is no reference may be anywhere."""
    conf = {
        "spark.executorEnv.CUSTOMER_KEY": "env://KEY", "spark.authenticate.secret": "env://SECRET",
        "spark.ssl.rpc.keyPassword": "env://PASSWORD", "spark.ssl.rpc.privateKeyPassword": "env://PASSWORD",
        "spark.hadoop.customer.token": "env://TOKEN", "spark.network.timeout": "120s", "spark.driver.port": "4040",
        "spark.sql.passport": "env://X", "spark.executorEnv.JAVA_TOOL_OPTIONS": "-Da=b",
    }  # fmt: skip
    check_secrets(conf, (), {}, may_be_literal=False)
    literal = {"spark.authenticate.secret": "hunter2", "spark.ssl.rpc.keyPassword": "hunter2"}
    check_secrets({**conf, **literal, "spark.network.auth.rpcTimeout": "120s"}, (), {}, may_be_literal=True)


def test_java_options_without_secrets_pass() -> None:
    """The usual ones, those of Kafka's and Kerberos' logins and of proxies among them: files, and no secrets."""
    options = (
        "-XX:+UseSerialGC -Da=b -Djava.security.auth.login.config=/etc/jaas.conf -Djava.security.krb5.conf=/etc/k.conf"
        " -Djavax.security.auth.useSubjectCredsOnly=false -Djdk.http.auth.tunneling.disabledSchemes=Basic"
        " -Djavax.net.ssl.trustStore=/etc/trust.jks"
    )
    conf = {"spark.driver.extraJavaOptions": options, "spark.executor.extraJavaOptions": options}
    check_secrets(conf, (), {"JAVA_TOOL_OPTIONS": options}, may_be_literal=False)


def test_a_password_in_a_jar_s_address_is_refused() -> None:
    """Jars, packages and the master are on the command line."""
    check_plain_uris(jars=("s3a://bucket/x.jar", "/x.jar"), packages=("g:a:1",), master=("spark://h:7077",))
    with pytest.raises(InvalidRequestError, match="command line") as raised:
        check_plain_uris(jars=("https://ada:hunter2@h/x.jar",))
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "uri", ["https://ada:hunter2@h/job.py", "s3://hunter2:hunter2@b/x", "https://h/x?token=hunter2"]
)
def test_a_password_in_the_address_of_a_script_is_refused(uri: str) -> None:
    """Scripts and files are local ones; in the error of one that is not there its address would be shown."""
    for what in ("application", "py_files", "files"):
        given: dict[str, Any] = {
            "application": Path("job.py"),
            what: Path(uri) if what == "application" else (Path(uri),),
        }
        with pytest.raises(InvalidRequestError, match="path of a local file") as raised:
            deploy_request("flights", **given)
        assert what in raised.value.context
        assert "hunter2" not in str(raised.value)


def test_a_path_that_only_looks_like_an_address_is_a_path() -> None:
    """A colon or an at sign is no password."""
    for path in ("file:/data/job.py", "/data/a:b/c@d/job.py", "abfss://container@account/job.py", "C:/job.py"):
        check_local_paths(application=(Path(path),))


def test_a_malformed_reference_is_refused_wherever_it_stands() -> None:
    """Before anything is recorded."""
    for conf, arguments, environment in (
        ({"spark.a": "secret://vault/x"}, (), {}),
        ({}, ("--x=env://1",), {}),
        ({}, (), {"A": "env://"}),
    ):
        with pytest.raises(InvalidRequestError, match="no reference"):
            check_secrets(conf, arguments, environment, may_be_literal=True)
