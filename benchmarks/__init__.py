"""Measurements: Umbel, its peer and the limit of the machine in one run."""
