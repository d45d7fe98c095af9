"""What must not be shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_streamstate.protocol.redaction import (
    HIDDEN,
    STATE_CHECK_STAYS,
    is_secret_name,
    redact_text,
    redact_uri,
    secrets_of,
    shortened,
)


@pytest.mark.parametrize(
    "name",
    [
        "spark.hadoop.fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.session.token",
        "AWS_SECRET_ACCESS_KEY", "awsAccessKeyId", "javax.jdo.option.ConnectionPassword", "spark.ssl.keyPassword",
        "kafka.sasl.jaas.config", "kafka.ssl.truststore.password", "fs.azure.account.key.x.dfs.core.windows.net",
        "fs.azure.account.oauth2.client.secret", "spark.authenticate.secret", "--token", "--api-key", "apikey",
        "--db-passwd", "PGPASSWORD", "pwd", "--passphrase", "basic_auth", "Authorization", "--creds", "private_key",
        "X-Amz-Signature", "google.cloud.auth.service.account.private.key", "--pass", "shared-access-key",
        "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_KEY",
    ],
)  # fmt: skip
def test_secret_like_names_are_known(name: str) -> None:
    """Spark's, Hadoop's, Kafka's and the usual ones."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    ["spark.sql.shuffle.partitions", "spark.app.name", "author", "compass", "--input", "spark.executor.cores",
     "spark.sql.streaming.stateStore.providerClass", "keyspace", "bypass", "primary_key", "spark.master"],
)  # fmt: skip
def test_other_names_are_shown(name: str) -> None:
    """Hiding everything would help no reader."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--password", "hunter2", "in"], ["--password", HIDDEN, "in"]),
        (["--password=hunter2"], [f"--password={HIDDEN}"]),
        (["--conf", "spark.my.secret=a=b=c"], ["--conf", f"spark.my.secret={HIDDEN}"]),
        (["--conf=spark.my.token=a=b="], [f"--conf=spark.my.token={HIDDEN}"]),
        (["--token", "--verbose", "x"], ["--token", "--verbose", "x"]),
        (["--tokens", "abcd", "efgh"], ["--tokens", HIDDEN, "efgh"]),
        (["password=hunter2"], [f"password={HIDDEN}"]),
        (["--in", "s3://bucket/a", "--n=3"], ["--in", "s3://bucket/a", "--n=3"]),
        (["--url=redis://:hunter2@h/0"], [f"--url=redis://{HIDDEN}@h/0"]),
        (['{"password": "hunt\\"er2", "n": 1}'], [f'{{"password": "{HIDDEN}", "n": 1}}']),
        (["--token"], ["--token"]),
        ([""], [""]),
    ],
)
def test_arguments_are_shown_without_their_secrets(arguments: list[str], shown: list[str]) -> None:
    """As a separate word, behind an equals sign, in a conf, in a URI, in JSON."""
    text = redact_text(" ".join(arguments), secrets_of({}, arguments))
    assert text == " ".join(shown)
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/x", f"s3://{HIDDEN}@bucket/x"),
        ("postgresql://u:p@ss@db:5432/x", f"postgresql://{HIDDEN}@db:5432/x"),
        ("redis://:pw@h", f"redis://{HIDDEN}@h"),
        ("https://ghp_abcdef@github.com/x", f"https://{HIDDEN}@github.com/x"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("https://b/x?X-Amz-Signature=abc&n=1", f"https://b/x?X-Amz-Signature={HIDDEN}&n=1"),
        ("jdbc:sqlserver://h;user=a;password=b;x=1", f"jdbc:sqlserver://h;user=a;password={HIDDEN};x=1"),
        ("two a://u:p@h and b://u:p@h.", f"two a://{HIDDEN}@h and b://{HIDDEN}@h."),
        ("fencing_token=7 at 10:00, mail me@example.org", "fencing_token=7 at 10:00, mail me@example.org"),
        ("file:///data/a@b:c", "file:///data/a@b:c"),
        ("", ""),
    ],
)
def test_uris_are_shown_without_passwords(text: str, shown: str) -> None:
    """User and password, parameters under secret-like names; everything else stays."""
    assert redact_uri(text) == shown


def test_secrets_are_taken_out_of_texts() -> None:
    """A value that a script prints by itself is hidden wherever it is."""
    conf = {"spark.my.password": "hunter2-long", "spark.a": "redis://:redispw@h", "spark.my.pwd": "abc"}
    secrets = secrets_of(conf, ["--token", "tok-123456", "--conf", "x.secret=hunter2", "https://h/?sig_token=qrst"])
    assert secrets == ("hunter2-long", "tok-123456", "hunter2", "redispw", "qrst")
    text = redact_text("ERROR hunter2-long and hunter2, redispw; tok-123456 abc", secrets)
    assert text == f"ERROR {HIDDEN} and {HIDDEN}, {HIDDEN}; {HIDDEN} abc"


@given(st.lists(st.text(max_size=20), max_size=5), st.dictionaries(st.text(max_size=10), st.text(max_size=20)))
def test_nothing_breaks_it(arguments: list[str], conf: dict[str, str]) -> None:
    """Whatever a user passes: no error."""
    redact_text(" ".join(arguments), secrets_of(conf, arguments))


@given(st.from_regex(r"[A-Za-z0-9+/_.-]{8,20}", fullmatch=True))
def test_no_secret_survives(secret: str) -> None:
    """In each of the usual places."""
    secret = f"Zq{secret}"
    conf = {"spark.my.secret": secret, "spark.url": f"redis://:{secret.replace('/', '')}@h"}
    arguments = ["--password", secret, f"--token={secret}", "--conf", f"a.secret.key={secret}"]
    assert secret not in redact_text(f"log: {secret}!", secrets_of(conf, arguments))


def test_a_long_word_is_gone_through_once() -> None:
    """A traceback may hold a word of half a megabyte: it is shown as it is, and a URI right behind it is not."""
    word = "broken" * 80_000
    assert redact_text(f"ValueError: {word} {word}s3://key:hunter2@bucket", ()) == (
        f"ValueError: {word} {word}s3://{HIDDEN}@bucket"
    )


def test_a_secret_of_several_lines_is_met_line_by_line() -> None:
    """A key as logs have it: each line for itself, escaped, or without the newline at its end."""
    key = "-----BEGIN KEY-----\n  MIIEvQIBADANBg\nab\n-----END KEY-----\n"
    secrets = secrets_of({}, (), looked_up=(key, "hunter2\n"))
    assert redact_text("read\nMIIEvQIBADANBg\nab", secrets) == f"read\n{HIDDEN}\nab"  # ab alone would hide too much
    assert "MIIE" not in redact_text(repr(key), secrets)
    assert redact_text("logged in with hunter2.", secrets) == f"logged in with {HIDDEN}."
    assert redact_text(f"<{key}>", secrets) == f"<{HIDDEN}>"


def test_a_text_is_cut_after_its_secrets_are_hidden() -> None:
    """A cut secret could not be recognised, at neither end; nor one whose blanks were made one."""
    text = "key hunter2-secret and  more"
    for characters in range(len(text)):
        for from_end in (False, True):
            shown = shortened(text, ("hunter2-secret",), characters, from_end=from_end)
            assert "h" not in shown
            assert "s" not in shown
    assert shortened("a  b\n c", (), 4, in_a_line=True) == "a b "
    assert shortened("a\nTraceback (most recent call last):\n  File x\nValueError: no", (), 99, in_a_line=True) == (
        "a ValueError: no"
    )
    assert shortened("log  in with hunter2  of\nwood", ("hunter2  of\nwood",), 99, in_a_line=True) == "log in with ***"


@pytest.mark.parametrize(
    "advice",
    [
        "If you want to force running the query without schema validation, please set"
        " spark.sql.streaming.stateStore.stateSchemaCheck to false.\nHowever, please note that running the query with"
        " incompatible schema could cause non-deterministic behavior.",
        "If you want to force running query without schema validation, please set"
        " spark.sql.streaming.stateStore.stateSchemaCheck to false. Please note running query with incompatible schema"
        " could cause indeterministic behavior.",
    ],
)
def test_sparks_advice_to_read_state_as_what_it_is_not_is_not_passed_on(advice: str) -> None:
    """Of Spark 4 and of Spark 3; what comes before and after it stays."""
    assert redact_text(f"Existing value_schema=<a>. {advice} SQLSTATE: 42K06", ()) == (
        f"Existing value_schema=<a>. {STATE_CHECK_STAYS} SQLSTATE: 42K06"
    )


@pytest.mark.parametrize(
    "text",
    ["?" * 200_000, "?token" * 33_000, "?a=" * 66_000, ";token=;" * 25_000, "\"'" * 100_000, '"token' * 33_000,
     '"' + "token" * 40_000, '"a":' * 50_000, '"token":"' * 22_000, '"token"' + " " * 200_000],
    ids=lambda text: text[:9].strip(),
)  # fmt: skip
def test_a_text_that_is_made_for_it_does_not_take_hours(text: str) -> None:
    """A driver writes what it likes into its log, and the page and the watcher hide its secrets."""
    assert len(redact_uri(text)) > 0
    assert len(secrets_of({"spark.x": text}, [])) >= 0


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("?next=http://h/?token=x&b=1", f"?next=http://h/?token={HIDDEN}&b=1"),
        ("?a?token=x", f"?a?token={HIDDEN}"),
        ("?token?a=x", f"?token?a={HIDDEN}"),
        (f"?{'a' * 500}token=x", f"?{'a' * 500}token={HIDDEN}"),
        ('"a":"b","token":"x"', f'"a":"b","token":"{HIDDEN}"'),
        ("{'a': 'token', 'pass': \"x'y\"}", f"{{'a': 'token', 'pass': \"{HIDDEN}\"}}"),
    ],
)
def test_a_secret_is_found_after_a_name_that_is_none(text: str, shown: str) -> None:
    """The value of a name that is shown may hold the parameter or the pair that is not."""
    assert redact_uri(text) == shown
