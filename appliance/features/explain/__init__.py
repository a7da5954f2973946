"""Explains one captured request, from its bytes to its cache; see README.md. Refuses to load a model for that."""
