"""The agent: its two threads, the commands it obeys, and the supervisor that the script's side speaks to."""
