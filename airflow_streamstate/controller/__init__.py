"""Deploy, resume, stop, drain, snapshot, upgrade, watch: the synchronous core of the shell and of Airflow.

``observe`` reads; ``state`` and the ``decide_`` functions are pure; the rest records and then acts. A ``Controller``
keeps no state of its own: any later controller goes on from the stores (Laws 1 and 2).
"""
