"""Floor 0: what both sides agreed on. Bytes, keys, masks, sums.

Pure: no I/O, clock, thread or global; numpy, cryptography and protobuf only.

What is agreed on  canonical.py gives a table one byte form, manifest.py a model one buffer and
                   digest.py one hash; plan.py holds a run's parameters, graph.py who masks with
                   whom. context.py binds all of it into ctx0 and ctx.
Scheme A           scheme_a.py is its table; member.py and aggregator.py are its two roles,
                   standpoint.py what a member brings, rules.py what it checks, unmasking.py
                   what the server rebuilds, transcript.py what it may keep on disk, and
                   reopening.py how a successor goes on from there. Below
                   them keys.py, shamir.py, masks.py, entropy.py. plain.py is the same with masks
                   off; round_table.py is an attempt at the coordinator.
Numbers            codec.py puts values and weight into the ring, layout.py makes the one message.
The wire           messages.proto, compiled into messages_pb2.py; wire.py bounds every message,
                   frames.py carries bulk bytes, pace.py
                   in what parts, replay.py lets a message count once.
Who is who         certificates.py issues, verification.py judges; members.py lists who was
                   removed, membership.py is who is a member by the newest list; tickets.py admits
                   to a run, fields.py is the byte form of both.
                   enrolment_token.py is how a device comes to know its federation, enrolment.py
                   how it gets certificates, in the strict JSON of forms.py.
                   journal.py is what a node must not forget, bundles.py who stands for an app.
Errors             errors.py: each branch says whose move is next; documents.py reads JSON and
                   TOML of others with one error for whatever is wrong.
"""
