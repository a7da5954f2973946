"""Per-OS code behind one set of names, chosen once at import.

Refuses to know about models; could be extracted as a library."""
