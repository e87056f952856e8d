"""What devices a fleet has: speeds, lines, availability, losses. Clock and plan share this."""
