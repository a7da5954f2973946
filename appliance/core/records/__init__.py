"""Facts about requests: what an answer cost, activity, captures, log lines.

Refuses to keep rows: `store` and `traffic` do.
"""
