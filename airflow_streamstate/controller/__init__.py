"""Deploy, resume, stop, drain, snapshot, upgrade, watch: the synchronous core of the shell and of Airflow.

``observe`` reads; ``state`` and the ``decide_`` functions are pure; the rest records and then acts. A ``Controller``
keeps no state itself: any later controller continues from the stores (Laws 1 and 2).
"""
