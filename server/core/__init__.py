"""The aggregation core: where updates are summed.

In service  world.py is a world of one process, numpy; it serves every run. run_model.py is a
            run's model beside its sums. segments.py is memory that several processes share, rows.py
            the aggregate of a robust rule over messages that are kept.
Kernels     The ranks' work, functions over buffers of the caller, not yet in service.
            shards.py says who owns which words. torch_folds.py adds updates of every encoding,
            numba_folds.py the two commonest of them compiled,
            torch_exact.py adds them with the same bits in any order. unmask.py takes masks off a
            shard on threads, numba_chacha20.py the same in one pass where it is compiled,
            triton_chacha20.py on a GPU. torch_step.py moves a shard of the model
            by the mean. torch_kernels.py names the kernels, each beside its eager reference.
"""
