"""Floor 3: many clients and one server on one machine.

In one process       run.py is `simulate`, federation.py its parties, link.py what carries their
                     bytes, drops.py loses some on purpose; cli.py is `umbel simulate`, report.py
                     what a person sees of it.
As processes         up_cli.py is `umbel up`, up_plan.py what it will do, flower_up.py what it
                     starts, flower_run.py one run on that, up_report.py its summary;
                     dev_federation.py makes CA, devices and registry, flower_control.py speaks to
                     the SuperLink, run_feed.py reads a run's ledger while it grows.
                     flower_keeper.py keeps it running after `--keep`, down_cli.py is `umbel
                     down`.
Below that           processes.py is the one supervisor, process_tree.py finds what belongs to it,
                     programs.py is how a program is started, stopping.py how the command ends.
An app of one's own  new.py is `umbel new`, with templates/.
"""
