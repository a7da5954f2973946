"""One box of a pool among the others: the bus and its server, who is there, who loads what.

Refuses to speak HTTP with clients, and to relay requests. A program that is in no pool imports nothing of it.
"""
