"""Measurements: Umbel, its peer and the limit of the machine in one run.

The command  cli.py is `umbel bench`, record.py what a benchmark reports and where that is kept,
             process_memory.py how memory is counted.
round        round.py: a round that trains nothing; flower_round.py is the federation for it.
secure       secure.py: what protection costs. secure_cast.py is who takes part and
             secure_round.py what they do; secure_memory.py and secure_server.py measure the
             server's memory; flower_secure.py is the peer.
footprint    footprint.py: memory and start-up of a device; footprint_node.py is the device,
             flower_footprint.py the peer; flower_agent.py a device that idles for months,
             install_size.py what an installation takes.
enrol        enrol.py: devices that join through the front of a server.
fold         fold.py: updates into a sum; torch_fold.py has Umbel and the limit, flower_fold.py the
             peer, layer_sizes.py its layers; torch_ranked_fold.py are the ranks' own sums,
             fold_memory.py the process whose memory is compared.
ingest       ingest.py: an update into the server's memory; ingest_process.py is the other process,
             grpc_ingest.py Umbel's two ends, flower_ingest.py the peer's, tcp_ingest.py the limit;
             ingest_publish.py is the end of a round. flower_objects.py: Flower's own objects into
             the mean.
unmask       unmask.py: masks off a sum; flower_masks.py is the peer.
step         step.py: the model moves by the mean; rule_steps.py, and flower_step.py as the peer.
ranks        ranks.py: one and two rank processes beside the world of one.
gpu          gpu.py: bits and rates of a CUDA device, by torch_gpu.py.
simulate     simulate.py: clients a second. simulation_work.py has the workloads,
             torch_workloads.py models and the plain loop, torch_simulation.py Umbel's tiers and the
             limit; flower_simulation.py is one app on both engines, pfl_simulation.py the other
             peer.
robust       robust.py: the robust rules on one thread; flower_robust.py has the peers.
clock        clock.py: a million clients on the virtual clock, by clock_process.py;
             flower_clock.py is the peer.
plan         plan.py: a plan of a million devices, by the command itself.
"""
