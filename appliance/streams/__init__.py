"""One producer task and one replay ring per resumable generation.

Refuses to know who reads; nothing lives here until streams outlive their requests."""
