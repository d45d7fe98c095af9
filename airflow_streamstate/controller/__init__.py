"""Deploy, resume, stop, drain, snapshot, watch: the synchronous core that the shell and Airflow are thin over.

Observe, decide, record, act: ``observe`` reads, ``state`` and the ``decide_`` modules are pure, everything else does
what was decided. A ``Controller`` keeps nothing: whoever comes later goes on from what the stores say (Laws 1 and 2).
"""
