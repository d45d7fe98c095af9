"""One attempt: what it holds, its latch, its queries as the script sees them, what it tells, what it captures."""
