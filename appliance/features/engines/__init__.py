"""Knows the builds of llama.cpp on this machine, and chooses the one that a model is started on; see README.md.

Refuses to trust an engine for its name: it has to say what the starter model says.
"""
