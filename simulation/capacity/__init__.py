"""What to expect of a fleet before a run: formulas where they are exact, drawn numbers elsewhere.

job.py is what a run asks of its fleet, sample.py a distribution that was drawn, rosters.py who
must stay in a secure round.

rounds.py draws a run's rounds: expected.py is what it returns, population.py the devices, course.py
the chain of rounds, weather.py what happens to all of a site at once. few.py has the rounds of a
fleet that is small enough to follow each device, windows.py when these are online. many.py has
those of a larger one, from curves of arrivals.py; shares.py counts who is used in them.

Asynchronous runs: buffers.py draws them launch by launch, flow.py is what to expect of one, and
asynchronous.py their plan.

cli.py is `umbel plan`. subject.py reads the run and the sizes of its messages, plan.py puts the
plan together (parts.py: what all plans have): chances.py the odds of a round, secure.py those of
its masks, memory.py and ranks.py what the server needs, costs.py what is paid and facts.py for
what, advice.py what to do about it, checks.py what does not fit, band.py what a run is compared
with. sensitivity.py says which assumption matters: variants.py are the assumptions, glance.py looks
at each with the same draws. plan_file.py is the form in which a plan is kept, text.py the screen
that people get, words.py its numbers.

odds.py has the binomial count in closed form, and with it when the k-th of n comes. losses.py has
that of devices which share the hours of their site, site_hours.py those hours; quorum.py says how
sure a quorum is with them, how sure it would seem without, and how many to ask. graph_odds.py says
how likely masks cannot be taken off because too many went.

Nothing here knows the clock or the engine: a plan that was checked against its own simulator would
prove nothing. The fleet's description is what they share.
"""
