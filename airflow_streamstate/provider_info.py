"""The provider's description for Airflow. Imports nothing else: provider discovery runs in every Airflow process."""

from airflow_streamstate import __version__


def get_provider_info() -> dict[str, object]:
    """The description in the form of Airflow's ``provider_info.schema.json``."""
    integration = "Spark Structured Streaming state"

    def under(*modules: str) -> list[dict[str, object]]:
        paths = [f"airflow_streamstate.{name}" for name in modules]
        return [{"integration-name": integration, "python-modules": paths}]

    return {
        "package-name": "airflow-streamstate",
        "name": "Stream State",
        "description": "Savepoints, drains and safe upgrades for stateful Spark Structured Streaming.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://spark.apache.org/docs/latest/streaming/index.html",
                "how-to-guide": [f"/docs/how-to/{page}.md" for page in _HOW_TO],
                "logo": "/integration-logos/streamstate.svg",
                "tags": ["software"],
            }
        ],
        "hooks": under("hooks.streamstate"),
        "operators": under(
            "operators.deploy",
            "operators.upgrade",
            "operators.plan",
            "operators.stop",
            "operators.snapshot",
            "operators.declared",
            "operators.complete",
        ),
        "sensors": under("sensors.streamstate"),
        "triggers": under("triggers.streamstate"),
        "notifications": ["airflow_streamstate.notifications.streamstate.StreamNotifier"],
        "connection-types": [_CONNECTION_TYPE],
        "plugins": [{"name": "streamstate", "plugin-class": "airflow_streamstate.page.plugin.StreamStatePlugin"}],
        "extra-links": [f"airflow_streamstate.operators.links.{name}" for name in _LINKS],
        "asset-uris": [{"schemes": ["streamstate"], "handler": "airflow_streamstate.assets.normalized_uri"}],
        "cli": ["airflow_streamstate.hooks.airflow_command.get_commands"],
        "config": {"streamstate": {"description": "The provider airflow-streamstate.", "options": _OPTIONS}},
    }


_HOW_TO = ("deploy", "upgrade", "drain", "snapshot", "restart", "files", "rescale", "state", "keep", "secrets")
_LINKS = ("StreamPageLink", "DriverLogLink", "SparkUILink", "PlanReportLink", "SnapshotLink")
_OPTIONS = {
    "poll_interval_seconds": {
        "description": "Seconds between two polls of an operator that waits, if it has no poll_interval_seconds.",
        "version_added": "0.1.0",
        "type": "float",
        "example": "5",
        "default": "2.0",
    },
    "poke_interval_seconds": {
        "description": "Seconds between two polls of a sensor, if it has no poke_interval.",
        "version_added": "0.1.0",
        "type": "float",
        "example": "30",
        "default": "10.0",
    },
    "trigger_threads": {
        "description": "How many threads of a triggerer look at homes for deferred tasks.",
        "version_added": "0.1.0",
        "type": "integer",
        "example": "64",
        "default": "32",
    },
    "restart_in_triggerer": {
        "description": "Whether triggerers restart and prune, by each stream's policies, while anything waits there.",
        "version_added": "0.1.0",
        "type": "boolean",
        "example": "True",
        "default": "False",
    },
    "page_conn_ids": {
        "description": "Connections of type streamstate whose homes the page Streams shows, separated by commas.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "streamstate_default,streamstate_eu",
        "default": "streamstate_default",
    },
    "page_dag_ids": {
        "description": "Who sees a home on the page Streams: CONN_ID=DAG_ID, separated by commas, lets those see it "
        "who may read the DAG. Without an entry those see it who may read the connection.",
        "version_added": "0.1.0",
        "type": "string",
        "example": "streamstate_default=flights",
        "default": "",
    },
}
_OPTIONAL_TEXT = {"type": ["string", "null"]}
# The name of a secret's field must be secret-like, too: by it Airflow hides the value in its API and its page.
_OPTIONAL_SECRET = {"type": ["string", "null"], "format": "password"}
_CONNECTION_TYPE = {
    "connection-type": "streamstate",
    "hook-class-name": "airflow_streamstate.hooks.streamstate.StreamStateHook",
    "hook-name": "Stream State",
    "ui-field-behaviour": {
        "hidden-fields": ["host", "port", "schema"],
        "relabeling": {"login": "S3 access key id", "password": "S3 secret access key"},
        "placeholders": {
            "login": "empty: boto3's own chain of credentials",
            "home_uri": "s3://bucket/prefix",
            "endpoint_url": "https://minio.example:9000",
            "aws_conn_id": "aws_default",
            "role_arn": "arn:aws:iam::123456789012:role/streams",
            "role_session_name": "streamstate",
            "role_duration_seconds": "3600",
            "gcs_key_path": "/etc/streams/key.json",
            "azure_account": "empty: as the abfss URI names it",
            "allowed": '{"secrets": ["env://PG_*", "secret://airflow-connection/pg"]}',
        },
    },
    "conn-fields": {
        "home_uri": {
            "label": "Home",
            "description": "Where streams are kept: s3://bucket/prefix, gs://bucket/prefix, "
            "abfss://container@account.dfs.core.windows.net/prefix, or a folder that the workers share.",
            "schema": {"type": "string", "minLength": 1},
        },
        "checkpoints_uri": {
            "label": "Checkpoints",
            "description": "Where checkpoints and snapshots are, if not under the home. A URI like that of the home.",
            "schema": _OPTIONAL_TEXT,
        },
        "signing_secret_key": {
            "label": "Signing key",
            "description": "Signs what only controllers write, so that no driver can forge it. At least 32 characters; "
            "several, separated by spaces, for a rotation: the first one signs. Empty: no signatures.",
            "schema": _OPTIONAL_SECRET,
        },
        "work_dir": {
            "label": "Work folder",
            "description": "Folder of the workers for drivers' code and logs. Empty: next to the checkpoints, or "
            "the user's state folder.",
            "schema": _OPTIONAL_TEXT,
        },
        "allowed": {
            "label": "Allowed",
            "description": "What streams of this home may name beyond it: a JSON object with secrets, launchers, "
            "spark_connections and stores. Empty: drivers on the workers, without secrets.",
            "schema": {"type": ["object", "null"]},
        },
        "region": {
            "label": "S3 region",
            "description": "Empty: as boto3 finds it.",
            "schema": _OPTIONAL_TEXT,
        },
        "endpoint_url": {
            "label": "S3 endpoint",
            "description": "Another S3 server than AWS, e.g. http://127.0.0.1:9000.",
            "schema": _OPTIONAL_TEXT,
        },
        "aws_conn_id": {
            "label": "AWS connection",
            "description": "Source of S3 credentials, role, region and endpoint that this connection does not have.",
            "schema": _OPTIONAL_TEXT,
        },
        "role_arn": {
            "label": "S3 role",
            "description": "ARN of a role that controllers and drivers assume with these credentials, and renew. "
            "Empty: none.",
            "schema": _OPTIONAL_TEXT,
        },
        "role_external_id": {
            "label": "S3 role: external id",
            "description": "What the role's trust policy asks for, if anything.",
            "schema": _OPTIONAL_TEXT,
        },
        "role_session_name": {
            "label": "S3 role: session name",
            "description": "Names the session in AWS's logs.",
            "schema": _OPTIONAL_TEXT,
        },
        "role_duration_seconds": {
            "label": "S3 role: duration (seconds)",
            "description": "Of one set of credentials, 1800 to 43200.",
            "schema": {"type": ["integer", "null"], "minimum": 1800, "maximum": 43200},
        },
        "gcs_service_account_key": {
            "label": "GCS service account key",
            "description": "The key as JSON, for a home whose checkpoints are elsewhere: Spark takes it from a file. "
            "Empty: application default credentials.",
            "schema": _OPTIONAL_SECRET,
        },
        "gcs_key_path": {
            "label": "GCS key file",
            "description": "Such a key in a file that workers, drivers and executors have at this path.",
            "schema": _OPTIONAL_TEXT,
        },
        "gcs_endpoint_url": {
            "label": "GCS endpoint",
            "description": "Another server than Google's, asked without credentials if no key is given.",
            "schema": _OPTIONAL_TEXT,
        },
        "azure_account": {
            "label": "Azure account",
            "description": "Name of the storage account. Empty: as the abfss URI names it.",
            "schema": _OPTIONAL_TEXT,
        },
        "azure_secret_key": {
            "label": "Azure account key",
            "description": "Give this, a signature or a service principal. None: azure-identity's own chain.",
            "schema": _OPTIONAL_SECRET,
        },
        "azure_sas_token": {
            "label": "Azure shared access signature",
            "description": "With the rights to read, add, create, write, delete and list.",
            "schema": _OPTIONAL_SECRET,
        },
        "azure_tenant_id": {
            "label": "Azure principal: tenant id",
            "description": "Of a service principal with the role Storage Blob Data Contributor.",
            "schema": _OPTIONAL_TEXT,
        },
        "azure_client_id": {
            "label": "Azure principal: client id",
            "description": "Its application id.",
            "schema": _OPTIONAL_TEXT,
        },
        "azure_client_secret": {
            "label": "Azure principal: client secret",
            "description": "Its secret.",
            "schema": _OPTIONAL_SECRET,
        },
        "azure_endpoint_url": {
            "label": "Azure endpoint",
            "description": "Another server than Azure's, with the account: http://127.0.0.1:10000/devstoreaccount1.",
            "schema": _OPTIONAL_TEXT,
        },
    },
}
