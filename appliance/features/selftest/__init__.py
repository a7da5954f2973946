"""``selftest``, which proves that engine and model work on this machine; see README.md.

Refuses to ask a running server: it starts a model of its own.
"""
