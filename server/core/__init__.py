"""The aggregation core: where updates are summed.

In service  worlds.py says what every world can do. world.py is the one of one process, numpy, and
            serves every run unless `umbel core up --ranks` says otherwise. run_model.py is a run's
            model beside its sums, pages.py the memory of both.
Robust      kept.py keeps the messages of a plain round for a robust rule, rows.py is the rule's
            aggregate over them, room.py what memory is left for that.
Ranks       ranked_world.py is the world of several processes. segments.py is memory that they
            share, shared_sum.py where in it a sum lies, shards.py who owns which words.
            supervisor.py starts the ranks and gives them commands by rank_wire.py; rank.py is
            the process, torch_shard.py its work. ranked_step.py is the step as they do it,
            ranked_rows.py a robust rule.
Hosts       spread_world.py is the world of several hosts, spread_sum.py a sum whose parts lie on
            them. wing.py is the process of another host, part_model.py the model as it keeps it;
            torch_hosts.py is how they meet and talk.
Kernels     The ranks' work, functions over buffers of the caller. torch_folds.py adds updates of
            every encoding, numba_folds.py the two commonest of them compiled, torch_exact.py adds
            them with the same bits in any order. unmask.py takes masks off a shard on threads,
            numba_chacha20.py the same in one pass where it is compiled, triton_chacha20.py on a
            GPU. torch_step.py moves a shard of the model by the mean. torch_kernels.py names the
            kernels, each beside its eager reference.
"""
