"""Starting Spark drivers and asking about them: the ``Launcher`` and its implementations.

A launcher knows nothing of streams, snapshots or Airflow: it starts one driver per launch key, and answers for it.
"""
