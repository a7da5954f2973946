"""The only code that writes to disk for the program's own state: the activity log's SQLite file.

Refuses to know what the state means: which rows there are, and what is asked about them, is said by ``core``."""
