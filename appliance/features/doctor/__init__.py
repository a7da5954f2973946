"""Problems of this machine, its engines, models and server, each with its evidence and the commands that help.

Refuses to repair anything, and to keep facts: it examines when somebody asks.
"""
