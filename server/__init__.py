"""Floor 2: the cloud: coordinator, firewall, ledger, aggregation core.

A round       coordinator.py drives rounds, attempt.py one try at one, on what surroundings.py
              gives them, with who is here by roll.py. settings.py checks a run's numbers,
              run_config.py reads them by name, run_rule.py the server step among them, app_plan.py
              finds them in an app's directory,
              deadlines.py makes every time of a round out of its one deadline,
              consistency.py refuses what contradicts itself; planning.py and
              cohort.py choose whom to ask, invitation.py says what for, rejoin.py whether the
              last round waits, handover.py whether a session makes room for the next.
              reduced.py is a round whose updates come as one, in a simulation;
              initial.py takes a first model from a file, outcome.py reads an opened sum,
              client_times.py says when its clients answered, keeping.py which rounds stay on the
              disk.
Resume        history.py is where a run stands, by its ledger; open_round.py what is kept of a
              round whose survivors are fixed, reopened.py the attempt that goes on from there.
The test      evaluation.py tests the models of finished rounds while the rounds go on: by
              evaluators.py, whose processes (evaluator.py, held by evaluator_process.py) run the
              task's code, or by evaluate_here.py, which calls a function.
Vectors       ingest.py takes frames into slots of core/, firewall.py judges what is not masked.
              embedded.py is the core in the coordinator's own process. reduced_rows.py is what a
              robust rule makes of a simulated cohort's rows.
The model     model_in_force.py moves it on, a round at a time; stepping.py is the server step as
              an order to the core, and what each shard does of it; moment_file.py keeps the
              step's moments on the disk, leaf_hashes.py digests by threads.
The watch     run_plan.py reads the plan that a run is started with; watch.py says when the run has
              left it, in the words of watch_terms.py, by the probabilities of tails.py and after as
              many rounds as alarms.py wants, and causes.py says why. watching.py brings it the
              rounds, as watch_seen.py makes them of what the ledger says, and knows what people
              decided; gate.py is what stands before the next attempt, books.py what is written
              down of the last one.
The record    run_directory.py is a run on disk, run_place.py where it lies and who writes it,
              round_folder.py one round of it, by plain_files.py and array_file.py; ledger.py its
              chain of entries (ledger_chain.py), in the SQLite file of ledger_file.py;
              disk_space.py says what it
              will still take. lost_rounds.py finds where a run goes on, run_check.py what of it is
              damaged. write_behind.py does the writing in one thread, group_commit.py
              for rounds that are shorter than that; runs_cli.py shows past runs.
              reviews.py is what the run asks people to look at, and what they decided;
              review_cli.py asks them.
              run_feed.py reads a run's ledger while another process writes it, run_lines.py are
              its rounds as lines.
Signals       signals.py is how good each round was, by the run's record, with skew.py on how evenly
              clients were used, signal_groups.py by site or cohort; signals_text.py says it in
              lines. calibration.py is whether a plan was right about the rounds, which
              planned_rounds.py sets beside it.
Core service  core_cli.py is `umbel core up`, hosts_cli.py what it is over several hosts, and
              `umbel core wing` on those: core_service.py between sessions.py (who is
              connected) with streams.py (one node's session), core_sum.py (the open sum) with
              running_hash.py (of what arrives), grpc_gateway.py (devices' port), with
              grpc_measure.py (how fast a line is) and calls.py (what goes on there, by node), and
              core_socket.py with core_commands.py
              (ServerApps' socket), on what served.py holds of a run. core_watch.py reads the
              federation's files that change; endings.py is how a call ends, core_wire.py what
              passes the socket, core_log.py and core_stderr.py what an operator reads. service.py
              is what a server does before it listens, and how it is told to stop, allocator.py what
              it says to the C library.
Over Flower   flower_server_app.py is the ServerApp of a task, flower_train.py a run driven from
              one, with the settings of flower_app_settings.py; flower_sittings.py its rounds over
              one core service after another,
              flower_invitations.py who is asked to come, by registry.py; gathering.py says when
              enough have, draining.py when the run was told to end. core_client.py is its end of
              the core's socket, core_events.py what comes through it, remote_intake.py the vectors
              behind that.
              flower_control.py is the SuperLink's Control API, flower_programs.py the server's
              programs, as `umbel up` and `umbel server up` start them, flower_lives.py the
              ServerApps of one run, when one was killed, flower_output.py what they print.
              flower_up.py is the running server, flower_app_run.py one app on it, up_cli.py
              `umbel server up`.
Membership    federation_files.py is a federation's directory, federation_init.py makes one,
              server_toml.py is what its operator decides. issuer.py gives nodes their certificates
              by tokens (token_terms.py) and takes them, and keeps the member list: with
              issuer_signing.py, on issuer_books.py over the SQLite file of issuer_store.py. The
              SuperLink is told by issuer_registration.py, by means of flower_registration.py, which
              is a registrar.py.
              issuer_cli.py is `umbel server issuer`: issuer_socket.py carries out what
              issuer_commands.py lists and issuer_wire.py brings. init_cli.py, token_cli.py,
              remove_cli.py and roll_ca_cli.py (roll_ca.py: a new issuing CA) are its operator's
              commands, with the option of options.py.
The front     front_cli.py is `umbel server front`: front.py lets devices reach the one API of the
              SuperLink that they need, front_door.py has the port and its connections,
              front_body.py says how large and how slow a body may be, front_places.py who gives
              way when there is no room, front_pages.py how devices join.
Care          backup.py puts what a server needs into an archive.py, sealed by sealing.py;
              restore.py puts it where there is none; backup_form.py is what both know of it.
              backup_cli.py and restore_cli.py are commands, care_options.py has their options.
              status.py gathers how a server is, for status_cli.py: of the core service, which shows
              core_view.py, by core_status.py; of runs by status_records.py. status_nodes.py says
              why a node does not contribute, in the words of status_words.py. support.py gathers
              what a bug report needs, for support_cli.py.
The doctor    doctor_cli.py is `umbel server doctor`, doctor.py its probes,
              doctor_files.py those of the federation's directory, doctor_live.py of what runs.
Commands      cli.py is `umbel server`.
"""
