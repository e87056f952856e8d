"""What a person looks at after a run: one self-contained page, or a table of several runs.

figures.py reads a run: its ledger and its directory, nothing else, so that a run of devices serves
as well as a simulated one. report.py is the page about one run. compare.py sets several side by
side, compare_page.py draws them. cli.py has the commands.

Pictures  scale.py has axes and units; plots.py is a picture with two axes, bars.py what stands in
          it beside curves, over_rounds.py bars over a run's rounds.
Sections  learning.py, participation.py, clients.py, cohorts.py, staleness.py, metrics.py,
          signals.py, planned.py with calibrated.py, reviews.py, troubles.py; blocks.py is what they
          are put together from.
A plan    plan_page.py is the picture of a plan that was made before a run: plan_levers.py what to
          change first, plan_rounds.py times, plan_costs.py quorum, money and memory, plan_stream.py
          what an asynchronous run has in place of a quorum; across.py has the bars that lie.
Pages     markup.py escapes whatever was not written here, shell.py adds style (page.css), script
          (page.js) and the policy that lets nothing else run.
"""
