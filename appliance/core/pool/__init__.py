"""Several boxes as one: which boxes belong together, who is there, and who may decide what is loaded where.

Refuses I/O, clocks and randomness: times and ids are arguments.
"""
