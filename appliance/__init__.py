"""Llama Appliance: one program that turns a machine into a private AI server."""

__version__ = "0.2.0"
