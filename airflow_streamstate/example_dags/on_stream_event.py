"""### A DAG that starts because something happened to a stream

No task asks: the triggerer watches the stream, and each of its events becomes an event of the asset. Here a driver that
died, restarts that were abandoned, or a failed audit start a run, which reports what happened.
"""

from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_streamstate.triggers.asset_events import StreamEventTrigger

# [START on_stream_event]
trouble = Asset(
    name="flights_trouble",
    uri="streamstate://streamstate_default/flights",
    watchers=[
        AssetWatcher(
            name="flights_trouble_watcher",
            trigger=StreamEventTrigger(
                stream_id="flights", kinds=["failed", "query_died", "restarted", "gave_up", "audit_failed"]
            ),
        )
    ],
)


@dag(schedule=[trouble], catchup=False, doc_md=__doc__, tags=["streamstate"])
def on_stream_event():
    @task
    def say(triggering_asset_events=None) -> list[str]:
        happened = [event.extra["payload"] for event in triggering_asset_events[trouble]]
        return [f"{event['at']} {event['stream_id']} {event['kind']}: {event['text']}" for event in happened]

    say()


# [END on_stream_event]

on_stream_event()
