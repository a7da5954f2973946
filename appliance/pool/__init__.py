"""One box of a pool among the others: joining and leaving, the bus and its server, who is there, who loads what.

Refuses HTTP on the side that is asked: the door is handed in. A program that is in no pool imports only `seat`.
"""
