"""Numbers for monitors; see README.md.

Refuses to decide by them.
"""
