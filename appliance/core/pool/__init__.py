"""The decisions and formats of a pool of boxes: keys, codes, the roster, leases, placement.

Refuses to talk to another box.
"""
