"""What to expect of a fleet before a run: formulas where they are exact, drawn numbers elsewhere.

job.py is what a run asks of its fleet, sample.py a distribution that was drawn.

rounds.py draws a run's rounds: expected.py is what it returns, population.py the devices, few.py
the rounds of a fleet that is small enough to follow each of them, windows.py when these are online,
weather.py what happens to all of a site at once, course.py the chain of rounds.

plan_file.py is the form in which a plan is kept.

odds.py has the binomial count in closed form, and with it when the k-th of n comes. losses.py has
that of devices which share the hours of their site, site_hours.py those hours; quorum.py says how
sure a quorum is with them, how sure it would seem without, and how many to ask. graph_odds.py says
how likely masks cannot be taken off because too many went.

Nothing here knows the clock or the engine: a plan that was checked against its own simulator would
prove nothing. The fleet's description is what they share.
"""
