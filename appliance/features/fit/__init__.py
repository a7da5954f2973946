"""Memory of models before they are loaded: their parts, how much of them goes where, and what would go for one more.

Refuses to start, stop or measure anything: the fleet does that, and asks here first. See README.md.
"""
