"""A driver that waits, warm, to become an attempt (a rehearsal whose record says ``waits_until``)."""
