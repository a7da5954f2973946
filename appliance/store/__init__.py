"""The only code that writes to disk: the activity log's SQLite file, partial files, names in the model cache.

Refuses to know what it means: which rows there are is said by ``core``, which files make a model by ``catalog``."""
