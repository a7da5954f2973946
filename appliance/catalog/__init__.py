"""The models that exist: paths, model folders, the Hugging Face cache, the starter model; downloads into that cache.

Refuses to start anything, and to write: ``store`` writes to the disk.
"""
