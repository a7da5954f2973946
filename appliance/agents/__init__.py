"""One task per agent run, and the chain of slash-command plugins.

Refuses to know HTTP; nothing lives here until agents do."""
