"""The proxy for web pages, ``/cors-proxy``; see README.md.

Refuses to reach this machine and its network, unless it was allowed to.
"""
