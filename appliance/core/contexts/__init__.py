"""Contexts, which are what models have read: the slot of each conversation, and the files that outlive a process.

Refuses to touch files and engines: ``store`` and ``fleet`` do.
"""
