"""Protocol meets store: one stream's control objects as typed objects.

``objects`` has the two primitives (a record is created once, a register changes by compare-and-swap); the other modules
define where each message is stored.
"""
