"""The only code that writes to disk: the activity log's SQLite file, partial files, names in the model cache.

Refuses to know the meaning: ``core`` decides which rows there are, and ``catalog`` which files make a model.
"""
