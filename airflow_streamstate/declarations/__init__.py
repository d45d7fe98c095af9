"""Streams as files: one YAML file declares all of a stream, and the files of a folder become what the home runs."""
