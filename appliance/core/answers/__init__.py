"""Answers of models: their forms, their replay ring, and how a broken one is continued.

Refuses to know who reads an answer.
"""
