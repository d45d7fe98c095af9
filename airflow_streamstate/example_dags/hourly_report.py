"""### A batch DAG that runs once on each complete hour of a stream

`complete_hours` emits the hours. Airflow gives the hour as the partition key of the run (3.3 and later). Earlier
releases start one run for all hours that are new, and their event names them.
"""

from datetime import datetime, timezone

from airflow.sdk import dag, task

from airflow_streamstate.assets import partitions_asset

try:
    from airflow.sdk import PartitionedAssetTimetable
except ImportError:  # before Airflow 3.3
    PartitionedAssetTimetable = None

FLIGHTS = partitions_asset("streamstate_default", "flights")


# [START hourly_report]
@dag(
    schedule=PartitionedAssetTimetable(assets=FLIGHTS) if PartitionedAssetTimetable else [FLIGHTS],
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["streamstate"],
)
def hourly_report():
    @task
    def report(dag_run=None, triggering_asset_events=None):
        """Batch work on the rows of these hours, all of which are in the sink."""
        if getattr(dag_run, "partition_key", None):
            return [dag_run.partition_key]
        events = [event for found in triggering_asset_events.values() for event in found]
        return sorted({hour for event in events for hour in (event.extra or {}).get("partitions", [])})

    report()


# [END hourly_report]

hourly_report()
