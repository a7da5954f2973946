"""llama-swap's routes; see README.md.

Refuses to decide: fleet, catalog and traffic do.
"""
