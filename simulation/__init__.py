"""Floor 3: many clients and one server on one machine.

In one process       run.py is `simulate`, federation.py its parties, link.py what carries their
                     bytes, drops.py loses some on purpose; seats.py has a tier train what their
                     sessions send, remembered.py checks once what a thousand check. population.py
                     is the same for clients that are numbers, simulated.py its settings,
                     tier_choice.py who trains them; cli.py is
                     `umbel simulate`, report.py what a person sees of it.
A Flower app         flower_simulate.py runs one as it is, over the Grid of engine/;
                     flower_history.py is its record, flower_simulate_cli.py its lines.
As processes         up_cli.py is `umbel up`, up_plan.py what it will do, flower_up.py brings up
                     the servers and what flower_programs.py adds; flower_run.py is one run on
                     that; up_report.py is its summary. dev_federation.py makes CA, devices and
                     registry. flower_keeper.py keeps it running after `--keep`, its runs by
                     flower_kept.py; down_cli.py is `umbel down`, resume_cli.py `umbel runs resume`.
An app of one's own  new.py is `umbel new`, with templates/; keygen.py makes the key with which
                     sign_cli.py signs it.
Engine               engine/ trains cohorts by tiers, native/ is the fastest of them; data/ holds
                     the examples of many clients.
Time                 fleet/ says what devices there are, clock/ who arrives when; fleet_cli.py is
                     `umbel fleet`, show_cli.py its `show`.
Beforehand           capacity/ says what to expect of a run, fitting/ what runs showed of a fleet.
Afterwards           pages/ is what a person looks at.
"""
