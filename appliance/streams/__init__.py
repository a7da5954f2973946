"""One producer task and one replay ring per resumable generation; readers come and go.

Refuses to know the readers, and the meaning of the bytes.
"""
