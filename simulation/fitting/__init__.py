"""What runs showed of a fleet: from ledgers to a fleet.toml, and what that changes in a plan."""
