"""Floor 3: many clients and one server on one machine."""
