"""``top``, the requests under way in a terminal; see README.md.

Refuses to measure: the server tells all that is shown.
"""
