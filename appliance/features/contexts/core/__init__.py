"""The contexts that models have read: which slot holds which, and what two requests have in common.

Refuses to ask an engine or touch a file: `owner` carries the decisions out.
"""
