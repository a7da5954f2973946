"""The only code that writes to disk for the program's own state.

Refuses to know what the state means; nothing lives here until something must be remembered."""
