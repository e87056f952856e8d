"""The engine: cohorts trained by the fastest tier that can, the rest as in a deployment.

work.py is what a round asks of a tier, and what a tier hands over. verdicts.py judges an update and
adds it in fixed point, reducing.py is a sum or rows while they fill. examples.py counts a cohort's
examples before it trains, isolation.py is what a call of user code finds around it.
Tiers                loop.py trains one client after another in this process. tiers.py says which a
                     task may have, choosing.py takes the fastest by a short trial.
Hand-over            hand_over.py says which runs need a row of every client.
"""
