"""Data at scale: arrays mapped from files, with offsets; loaders of real sets."""
