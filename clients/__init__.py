"""Floor 2: one device's work: session, policy, journal, local training.

The session  session.py decides, one attempt after another; update.py makes the message out of a
             training. policy.py is what this device agrees to and policy_file.py the strict file
             it stands in, journal.py what it must not forget, device_files.py its directory:
             identity, pinned root, gateway. others.py is who the other members are, member_file.py
             keeps the newest list of who is none any more. clock.py is what it says of its own
             clock.
The line     grpc_session.py carries out what the session decides: grpc_line.py keeps the stream
             up, grpc_transfer.py sends vectors and fetches models, lease.py stops what trains for
             a server that is gone.
Over Flower  flower_launcher.py checks a bundle before a line of it runs;
             flower_client_app.py answers an invitation by a session, flower_trainer.py calls a
             wrapped app's functions, flower_node.py frees a killed node's key.
Bundles      apps.py says which may run and keeps those that wait for the owner, bundle.py reads
             them; apps_cli.py is `umbel client apps`, app_view.py what it shows.
Limits       limits.py says when this device takes part: hours.py are the windows of its day, which
             the agent obeys too, usage.py is its account of one, hooks.py asks the owner's
             commands, links.py finds the interface. confined.py says what bounds a bundle's code,
             bounds.py puts it on a process, landlock.py is the kernel's part.
User code    child.py runs it in one process, worker.py, over pipe.py; traces.py says once what it
             raised. trainers.py chooses
             between a child and a group: torch_ddp_worker.py is the group's processes,
             torch_ddp.py their training.
The owner    recorder.py writes down what a session does: history.py is the device's own record in
             history_file.py, status_file.py what agent and session say of themselves now. pause.py
             is the owner's word that both obey, and owner.py hears it during a session. refusals.py
             is what a refusal before a session leaves behind, leave.py the end of membership.
             status.py gathers what all of them say into one picture.
The doctor   doctor_cli.py is `umbel client doctor`, doctor.py its probes, doctor_files.py those of
             the device's directory, doctor_line.py of the way to front and gateway, with
             grpc_measure.py for its speed, doctor_state.py of what owner and policy say.
Joining      enrol.py makes a device out of a token, renew.py gets it new certificates: both ask the
             front (front_line.py), and granted.py looks at what comes before it is written.
The agent    agent.py is `umbel client up`, for months: it runs flower_supernode.py, which becomes
             the SuperNode that flower_slim.py makes small; renewals.py starts renewals,
             finishing.py is how long it runs on when it is to end, sd_notify.py speaks to
             systemd. install.py makes a service of it, whose unit unit_file.py writes.
Commands     cli.py is `umbel client`, options.py what its commands share; enrol_cli.py,
             renew_cli.py, up_cli.py, install_cli.py, uninstall_cli.py, status_cli.py,
             history_cli.py, leave_cli.py, pause_cli.py and resume_cli.py. support_cli.py writes
             what support.py gathers for a bug report.
"""
