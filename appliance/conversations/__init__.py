"""The page's conversations: who may change what, who hears of it, and one task for each answer being written down.

Refuses to ask models: it reads what a generation says, whoever asked for it.
"""
