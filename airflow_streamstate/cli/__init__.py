"""The ``streamstate`` command: the same verbs as the operators, for users and scripts."""
