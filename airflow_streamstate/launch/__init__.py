"""Starting Spark drivers and knowing how they are: the ``Launcher`` and its implementations.

A launcher knows nothing of streams, snapshots or Airflow: it is given a request, starts one driver per launch key, and
answers for it afterwards.
"""
