"""Measurements: Umbel, its peer and the limit of the machine in one run.

The command  cli.py is `umbel bench`, record.py what a benchmark reports and where that is kept,
             process_memory.py how memory is counted.
round        round.py: a round that trains nothing; flower_round.py is the federation for it.
secure       secure.py: what protection costs. secure_cast.py is who takes part and
             secure_round.py what they do; secure_memory.py and secure_server.py measure the
             server's memory; flower_secure.py is the peer.
footprint    footprint.py: memory and start-up of a device; footprint_node.py is the device,
             flower_footprint.py the peer.
step         flower_step.py: the server steps of Flower's own strategies.
"""
