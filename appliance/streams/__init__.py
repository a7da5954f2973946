"""One producer task and one replay ring per resumable generation; readers come and go.

Refuses to know who reads, and what it is that they read."""
