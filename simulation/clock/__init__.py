"""The virtual clock: who is asked, who arrives, and when, before anybody trains.

decision.py is what a clock decides of a round and what every clock can do; picking.py chooses
clients. everybody.py is the clock without a fleet.
"""
