"""The ``streamstate`` command: the same verbs as the operators, for people and scripts."""
