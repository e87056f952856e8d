"""Tier T0: C++ made from a model's layers, compiled once, one client a thread."""
