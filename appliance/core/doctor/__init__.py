"""Why it is on the processor, slow, or does not start: facts in, findings with evidence and advice out.

Refuses to look at anything: cli/ gathers the facts, and prints.
"""
