"""The virtual clock: who is asked, who arrives, and when, before anybody trains.

decision.py is what a clock decides of a round and what every clock can do; kept.py reads again what
it was restored from. everybody.py is the clock without a fleet, synchronous.py rounds with a
deadline, buffered.py asynchronous ones, for which launches.py looks ahead and scarce.py waits.
picking.py chooses clients, ends.py says how one client's work ends. choosing.py is which of them a
run has.
"""
