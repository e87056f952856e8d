"""Floor 2: one device's work: session, policy, journal, local training."""
