"""Why it is on the processor, slow, or does not start: facts in, findings with evidence and advice out.

Refuses to look at anything: appliance/features/doctor/gathering.py gathers the facts, and cli/ prints.
"""
