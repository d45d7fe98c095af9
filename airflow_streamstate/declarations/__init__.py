"""Streams as files: one YAML file says all of a stream, and the files of a folder become what the home runs."""
