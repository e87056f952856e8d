"""What devices a fleet has: speeds, lines, availability, losses. Clock and plan share this.

counter.py makes numbers that depend on nothing but what they are for.
"""
