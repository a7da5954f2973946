"""Names that clients bring: aliases, and one model for names that mean nothing; see README.md.

Refuses to take decorations from names: `core.models.names.meanings` does, for all names.
"""
