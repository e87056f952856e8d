"""Floor 1: algorithms and task definitions, shared by clients, server and simulation.

A task     task.py is what a user defines: model, data, loss; metrics.py what is measured,
           counted.py what a run may ask clients to count besides,
           optimizers.py the local step. app.py finds task and settings in an app's directory,
           app_source.py is the name by which a process of its own finds a task.
Splits     partition.py has the ways to split data for trying things, by the names of
           flwr-datasets: by size (partition_sizes.py), by class (partition_labels.py), by shards
           or a table (partition_shards.py), by whose an example is (partition_ids.py).
Training   trainer.py is one client's work, the same for all, testing.py the split of a
           server's test; numpy_task.py (with numpy_models.py) and torch_task.py are its engines.
Averaging  fedavg.py says which arrays are averaged, and has their norm.
           server_rules.py is what a mean does to a model: FedAvg, FedAdam and the others as pure
           values, one_pass.py picks the compiled kernels of numba_steps.py for them, by way of
           compiled.py, server_step.py is a whole model moved by one. staleness.py is what an update
           of an old model counts.
Flower     flower_fedavg.py and flower_fedopt.py are Flower's strategies of these names (arguments:
           flower_arguments.py); flower_rules.py is the rule that an object of Flower's means.
           flower_streaming.py is the Grid under their rounds: what flower_replies.py makes of
           replies as they come, over the private names of flower_objects.py. object_tree.py reads
           Flower's objects, npy.py the head of an array in one, and landing.py has the slots that
           their bytes go to and the sum of these, numba_landing.py its compiled passes
           (numba_finite.py is one of them, and of the rules'). flower_robust.py are the robust
           strategies, whose models are kept one by one (kept_models.py).
Robustness selection_network.py picks ranks without a sort, for the rules a coordinate at a time;
           gram.py has the rules that look at distances, from inner products alone.
           numpy_tiles.py are the kernels over the clients' rows, numba_tiles.py their compiled
           form, torch_tiles.py the one for any device and triton_tiles.py the one for a GPU,
           wide_tiles.py the one for thousands of rows;
           trimmed_stream.py is the trimmed mean of updates that come one by one.
           robust_rules.py names the rules and runs a round.
"""
