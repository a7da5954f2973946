"""This box in a pool: joining and leaving, the roster that all boxes agree on, the other boxes as peers.

Refuses HTTP on the side that is asked: the door is handed in.
"""
