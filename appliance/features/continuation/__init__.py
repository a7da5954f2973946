"""The continuation of answers whose engine died; see README.md.

Refuses what cannot be continued faithfully.
"""
