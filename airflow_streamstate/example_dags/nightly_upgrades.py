"""### Upgrade many streams, every night, a few at a time

Reads a file with the version of each stream, and upgrades the streams that run another one: one mapped task each, two
at a time. If a new version does not fit, or does not become healthy, its stream continues with the old one; its task
fails, and the other tasks continue.

The file is JSON, by stream: `{"flights": {"application": "/code/count.py", "arguments": [], "master": "local[2]"}}`.
"""

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow.sdk import dag, task

from airflow_streamstate.hooks.streamstate import StreamStateHook
from airflow_streamstate.operators.upgrade import UpgradeStreamOperator

# [START nightly_upgrades]
VERSIONS = Path(os.environ.get("NIGHTLY_UPGRADES_FILE", "/srv/streams/versions.json"))


@dag(
    schedule=os.environ.get("NIGHTLY_UPGRADES_SCHEDULE", "0 4 * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a retry continues what the earlier try started
    doc_md=__doc__,
    tags=["streamstate"],
)
def nightly_upgrades():
    @task
    def what_changed() -> list[dict]:
        hook = StreamStateHook()
        versions = json.loads(VERSIONS.read_text())
        return [
            {"stream_id": stream_id, **version}
            for stream_id, version in sorted(versions.items())
            if not hook.is_running(stream_id, **version)
        ]

    UpgradeStreamOperator.partial(
        task_id="upgrade",
        map_index_template="{{ task.stream_id }}",
        max_active_tis_per_dagrun=2,  # one that waits in the triggerer counts, too
        warm=False,  # no room for two drivers of each
        on_kill_action="rollback",
        deferrable=True,
    ).expand_kwargs(what_changed())


# [END nightly_upgrades]

nightly_upgrades()
