"""The door of a box of a pool: the one port where other boxes ask, over TLS, with the pool's key.

Refuses people: no page, no tools, no change of the program.
"""
