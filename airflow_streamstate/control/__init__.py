"""Protocol meets store: one stream's control objects as typed objects.

``cells`` has the two primitives everything stands on (a record is created once, a register changes by
compare-and-swap); the other modules say which message lies where.
"""
