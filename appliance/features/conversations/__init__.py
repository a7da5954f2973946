"""The page's conversations: a store that every browser shares, with one task for each answer that is written into one.

Refuses to ask models: it reads what a generation says, no matter which client asked for it.
"""
