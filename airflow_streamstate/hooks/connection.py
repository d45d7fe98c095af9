"""From an Airflow connection of type ``streamstate`` to the configuration of a home.

It takes fetched connections, so that the hook (synchronous) and the trigger (asynchronous) share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from airflow_streamstate.errors import InvalidRequestError
from airflow_streamstate.store.options import S3Options

if TYPE_CHECKING:
    from airflow_streamstate.controller.home import HomeConfig

CONNECTION_TYPE = "streamstate"
# Fields of an AWS connection that only the amazon provider supports: refused by name.
_ONLY_IN_AMAZON_PROVIDER = ("role_arn", "assume_role_method", "assume_role_kwargs")


class ConnectionLike(Protocol):
    """The fields of an Airflow connection that are read here."""

    conn_id: Any
    login: Any
    password: Any


@dataclass(frozen=True)
class Fetched:
    """A connection as Airflow gave it, with its extra as a JSON object."""

    connection: ConnectionLike
    extra: Mapping[str, Any]

    def text(self, name: str) -> str | None:
        """A field of the extra; None if it is missing or empty."""
        return _text(self.extra.get(name))


def aws_conn_id_of(fetched: Fetched) -> str | None:
    """The AWS connection that a ``streamstate`` connection names, if any."""
    return fetched.text("aws_conn_id")


def home_config(fetched: Fetched, aws: Fetched | None = None) -> HomeConfig:
    """The home that a connection names.

    Args:
        fetched: the ``streamstate`` connection: home_uri, checkpoints_uri, work_dir, region, endpoint_url,
            aws_conn_id in its extra; access key and secret key in login and password.
        aws: the connection that ``aws_conn_id`` names; fields of the first one take precedence.

    Raises:
        InvalidRequestError: it names no home, has half a credential, or needs the amazon provider.
    """
    from airflow_streamstate.controller.home import HomeConfig

    conn_id = str(fetched.connection.conn_id)
    home_uri = fetched.text("home_uri")
    if home_uri is None:
        raise InvalidRequestError(
            "this connection names no home",
            conn_id=conn_id,
            next_step="Set home_uri in its extra: s3://bucket/prefix, or a folder that the workers share.",
        )
    return HomeConfig(
        home_uri=home_uri,
        checkpoints_uri=fetched.text("checkpoints_uri"),
        s3=_s3_options(fetched, aws),
        work_dir=fetched.text("work_dir"),
    )


def _s3_options(fetched: Fetched, aws: Fetched | None) -> S3Options:
    access_key, secret_key, session_token = _credentials(fetched)
    profile_name = None
    region, endpoint_url = fetched.text("region"), fetched.text("endpoint_url")
    if aws is not None:
        _refuse_what_needs_the_amazon_provider(aws)
        if access_key is None:
            access_key, secret_key, session_token = _credentials(aws)
            profile_name = None if access_key else aws.text("profile_name")
        region = region or aws.text("region_name")
        endpoint_url = endpoint_url or _endpoint_of_aws(aws)
    return S3Options(
        region=region,
        endpoint_url=endpoint_url,
        access_key_id=access_key,
        secret_access_key=secret_key,
        session_token=session_token,
        profile_name=profile_name,
    )


def _credentials(fetched: Fetched) -> tuple[str | None, str | None, str | None]:
    access_key = _text(fetched.connection.login) or fetched.text("aws_access_key_id")
    secret_key = _text(fetched.connection.password) or fetched.text("aws_secret_access_key")
    if (access_key is None) != (secret_key is None):
        raise InvalidRequestError(
            "this connection has half a credential",
            conn_id=str(fetched.connection.conn_id),
            missing="access key id (login)" if access_key is None else "secret access key (password)",
            next_step="Fill in both, or neither to use boto3's own chain of credentials.",
        )
    return access_key, secret_key, fetched.text("aws_session_token")


def _endpoint_of_aws(aws: Fetched) -> str | None:
    services = aws.extra.get("service_config")
    of_s3 = services.get("s3") if isinstance(services, Mapping) else None
    found = of_s3.get("endpoint_url") if isinstance(of_s3, Mapping) else None
    return _text(found) or aws.text("endpoint_url")


def _refuse_what_needs_the_amazon_provider(aws: Fetched) -> None:
    asked = [name for name in _ONLY_IN_AMAZON_PROVIDER if aws.extra.get(name)]
    if asked:
        raise InvalidRequestError(
            "this AWS connection asks for something that is not supported for a home",
            conn_id=str(aws.connection.conn_id),
            fields=",".join(asked),
            next_step="Name a profile instead (profile_name): one of ~/.aws/config may assume the role, and renews it "
            "for workers and drivers alike. Or use no aws_conn_id, where the machine has the role.",
        )


def _text(value: object) -> str | None:
    text = str(value).strip() if value is not None else ""
    return text or None
