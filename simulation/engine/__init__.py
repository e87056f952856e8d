"""The engine: cohorts trained by the fastest tier that can, the rest as in a deployment.

work.py is what a round asks of a tier, and what a tier hands over. verdicts.py judges an update and
adds it in fixed point, reducing.py is a sum or rows while they fill. examples.py counts a cohort's
examples before it trains, isolation.py is what a call of user code finds around it.
Tiers                loop.py trains one client after another in this process, torch_epoch.py so by
                     compiled steps. torch_cohort.py trains many at once, torch_stacked.py is a step
                     of many models, torch_sums.py judges and adds their updates. tiers.py says
                     which tiers a task may have, choosing.py takes the fastest by a short trial.
Rounds               rounds.py drives them, one after another, figures.py is what each says in the
                     ledger, answers.py what it says of single clients there, central.py tests the
                     models.
Hand-over            hand_over.py says which runs need a row of every client, row_buffer.py is
                     where those of a robust rule lie.
Processes            pool.py is a pool of workers for any user code: pool_server.py starts them,
                     pool_worker.py is what one does, pool_wire.py how they are spoken to;
                     one_thread.py is for those that are forked from a caller.
                     task_tier.py is tier T3 for tasks over it, pool_task.py the workers' half.
Flower               flower_grid.py is Flower's Grid over the pool, flower_callee.py the workers'
                     half, flower_records.py what they send each other; spill.py keeps what nodes
                     remember.
                     work_wire.py is a work between two processes.
Machines             replicas.py says who takes what where torchrun starts several processes;
                     torch_replicas.py trains on all of them, torch_group.py is how they talk.
"""
