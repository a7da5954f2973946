"""Several boxes as one: which boxes belong together, who is there, who decides what is loaded where, keys and codes.

Refuses I/O, clocks and randomness: times and ids are arguments.
"""
