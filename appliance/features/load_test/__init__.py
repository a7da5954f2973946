"""``load-test``, which asks models many times at once; see README.md.

Refuses to start a server: the one that runs is tested.
"""
