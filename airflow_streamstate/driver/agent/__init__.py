"""The agent: its two threads, the commands it obeys, and the life of an attempt, to which the script's side speaks."""
