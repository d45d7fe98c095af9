"""### Report what is wrong with the streams

Every few minutes a task looks at all streams of the home, and reports each alert once when it is raised and once when
it is resolved, by the notifiers that are named here. Nothing else has to run for that.
"""

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import dag, get_current_context, task

from airflow_streamstate.notifications.streamstate import StreamNotifier

NOTIFIERS = []
if os.environ.get("ALERTS_MAIL_TO"):
    from airflow.providers.smtp.notifications.smtp import SmtpNotifier

    NOTIFIERS.append(
        SmtpNotifier(
            to=os.environ["ALERTS_MAIL_TO"],
            subject="{{ alert.stream_id or 'home' }}: {{ alert.rule }} {{ alert.kind }}",
            html_content="<p>{{ alert.text | e }}</p><p>{{ alert.raised_at }}</p>",
        )
    )


# [START alerts]
@dag(
    schedule=os.environ.get("ALERTS_SCHEDULE", "*/5 * * * *"),
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},  # a home that does not answer is asked again
    doc_md=__doc__,
    tags=["streamstate"],
)
def alerts():
    @task
    def look() -> dict:
        return StreamNotifier(notifiers=NOTIFIERS).looked(get_current_context())

    look()


# [END alerts]

alerts()
