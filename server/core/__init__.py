"""The aggregation core: where updates are summed.

In service  world.py is a world of one process, numpy; it serves every run.
Kernels     The ranks' work, pure functions over buffers of the caller, not yet in service.
            shards.py says who owns which words. torch_folds.py adds updates of every encoding,
            torch_exact.py adds them with the same bits in any order.
"""
