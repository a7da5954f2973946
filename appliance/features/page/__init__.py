"""The page, or a folder of files in its place; see README.md.

Refuses to know what the page shows: it asks the routes of others.
"""
