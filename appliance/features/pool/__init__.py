"""Other servers whose models this one offers too: configured peers, and the boxes of a pool; see README.md.

Refuses to choose a model for a request, and to look into what it passes on.
"""
