"""What runs showed of a fleet: from ledgers to a fleet.toml, and what that changes in a plan.

observed.py reads ledgers; attempts.py is what one attempt says. times.py fits log times, with
devices that differ and answers that nobody waited for; losses.py shares of losses and hours in
which a site was cut off; hours.py when devices are there. fit.py puts them together into a
description, with or without one to begin with (claims.py: whose devices are which cohort's), and
moved.py says how far a number moved; written.py is a description as a fleet.toml. cli.py is
`umbel fleet fit`.

The model is stated in docs/planning.md. Like capacity/, nothing here knows the clock or the engine.
"""
