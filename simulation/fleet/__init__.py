"""What devices a fleet has: speeds, lines, availability, losses. Clock and plan share this.

devices.py is what can be asked of a fleet. profiles.py answers from arrays, called.py from a
function of the user's. sites.py says what happens to all devices of a place at once, beta.py how
much is lost there in an hour. toml.py reads fleet.toml: quantities.py one quantity,
distributions.py what that is drawn from, description.py the devices of all of it, traces.py
recorded ones, declared.py the tables beside the cohorts. counter.py makes numbers that depend on
nothing but what they are for. shown.py is what a person asks of a description.
"""
