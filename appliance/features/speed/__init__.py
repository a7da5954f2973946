"""Speed over time; see README.md.

Refuses to measure: the activity log has what each request took.
"""
