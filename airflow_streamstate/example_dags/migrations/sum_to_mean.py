"""From the state of ``count_by_origin.py`` to that of ``mean_by_origin.py``, and back: for ``upgrade --migration``."""

# [START sum_to_mean]
from airflow_streamstate.migration import migrate


def to_sum(key, state):
    return {"count": state["count"], "sum": int(state["sum"])}


@migrate(query="delays", operator="aggregate:window,origin", inverse=to_sum)
def to_mean(key, state):
    return {"count": state["count"], "sum": float(state["sum"]), "count_2": state["count"]}


# [END sum_to_mean]
