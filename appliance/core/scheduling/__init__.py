"""Which model processes run, and what a name in a request means.

Refuses to start or stop anything: `fleet` carries the effects out.
"""
