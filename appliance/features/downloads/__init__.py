"""Models that are not here yet: from the hub, registries, addresses and other boxes; and their removal. See README.md.

Refuses to begin a transfer anew that can be continued, and to give a file its name before its hash is right.
"""
