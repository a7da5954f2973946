"""State on disk that survives a crash: the activity log's SQLite file, runs, streams, partial files of downloads.

Rooms that make files for others (``engines`` unpacks builds, ``tools`` edits what it is asked to) write those files.
Refuses to know the meaning: ``core`` decides which rows there are, and ``catalog`` which files make a model.
"""
