"""Explains one captured request: what its client sent, what became of it, what its engine saw; see README.md.

Refuses to load a model for that.
"""
