"""The hold of conversations on their slots between requests, and files of what slots hold; see README.md.

Refuses to decide who runs: the fleet does, and calls it with each load and end of a model.
"""
