"""Memory of a model before it is loaded: its parts, their sizes, and how much of it goes where.

Refuses to look: ``core.models.gguf`` reads files, and free memory is an argument.
"""
