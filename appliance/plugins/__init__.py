"""Hook protocols and the registry that third-party plugins see.

Refuses to import anything above core; nothing lives here until the first hook does."""
