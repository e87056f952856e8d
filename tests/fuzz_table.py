"""Which parser of foreign bytes is fuzzed where, and why the other readers of bytes are not.

`PARSERS` are all of them. `READERS` names every file of the package that calls one of `CALLS`, the
functions by which bytes become something else, with the parsers that reach it or the reason why
what it reads is nobody else's. `test_fuzz.py` compares the list with the source.
"""

from __future__ import annotations

from umbel.tests.fuzz_care import CARE
from umbel.tests.fuzz_clients import CLIENTS
from umbel.tests.fuzz_core import CORE
from umbel.tests.fuzz_data import DATA
from umbel.tests.fuzz_doctor import DOCTOR
from umbel.tests.fuzz_files import FILES
from umbel.tests.fuzz_fleet import FLEET
from umbel.tests.fuzz_flower import FLOWER
from umbel.tests.fuzz_issuer import ISSUER
from umbel.tests.fuzz_joining import JOINING
from umbel.tests.fuzz_members import MEMBERS
from umbel.tests.fuzz_owner import OWNER
from umbel.tests.fuzz_protocol import PROTOCOL
from umbel.tests.fuzz_roles import ROLES
from umbel.tests.fuzz_runs import RUNS

PARSERS = (
    *PROTOCOL, *FILES, *RUNS, *CORE, *CLIENTS, *FLOWER, *ISSUER, *OWNER, *ROLES, *MEMBERS,
    *JOINING, *CARE, *DOCTOR, *DATA, *FLEET,
)  # fmt: skip

CALLS = (
    *("json.load", "json.loads", "read_json", "tomllib.load", "tomllib.loads", "read_toml"),
    *("FromString", "ParseFromString", "MergeFromString", "unpack", "unpack_from", "iter_unpack"),
    *("load_pem_x509_certificate", "load_der_x509_certificate", "load_pem_private_key"),
    "load_pem_x509_certificates",
    *("load_ssh_private_key", "safe_open", "load_file", "sqlite3.connect"),
    *("from_json", "literal_eval", "read_magic", "read_array_header_1_0", "ZipFile"),
)
"""Functions that make something of bytes."""

READERS: dict[str, str] = {
    "protocol/bundles.py": "bundles.signers",
    "protocol/documents.py": "every parser of JSON and TOML below; test_documents.py",
    "protocol/enrolment_token.py": "enrolment_token.parse",
    "protocol/forms.py": "enrolment.EnrolRequest; enrolment.EnrolAnswer; enrolment.LeaveRequest",
    "protocol/frames.py": "frames.Assembly; core_service.frame; attempt.message",
    "protocol/manifest.py": "manifest.from_json; manifest.unpack",
    "protocol/members.py": "members.open",
    "protocol/membership.py": "membership.take; membership.learn",
    "protocol/tickets.py": "tickets.admit; core_service.enter",
    "protocol/transcript.py": "transcript.unpack, reopen",
    "protocol/verification.py": "verification.member; verification.peer; verification.peer PEM",
    "protocol/wire.py": "wire.parse_to_server; wire.parse_to_client; wire.parse_up; "
    "wire.parse_down; wire.parse_fetch; wire.parse_trust",
    "strategies/app.py": "app.read_tables, run_config.tables",
    "strategies/object_tree.py": "object_tree; object_tree, bodies",
    "clients/apps.py": "apps.parse",
    "clients/bundle.py": "bundle.read; bundle.read, pyproject",
    "clients/agent.py": "device_files.read, whose file it is",
    "clients/clock.py": "clock.issued",
    "clients/device_files.py": "device_files.read; device_files.tls, certificate; "
    "device_files.tls, key; device_files.identity, certificate; device_files.identity, key; "
    "device_files.membership, list; device_files.membership, issuing",
    "clients/doctor_files.py": "doctor_files, device.toml; doctor_files, certificate",
    "clients/enrol.py": "keys that this device has just made; test_enrol.py",
    "clients/front_line.py": "front_line.root_of",
    "clients/install.py": "device.toml, as device_files.read reads it; test_install.py",
    "clients/granted.py": "granted.check",
    "clients/renew.py": "device_files.tls, certificate; device_files.tls, key",
    "clients/flower_node.py": "an SSH key of this device's own making; test_flower_node.py",
    "clients/flower_trainer.py": "its parent's own environment variable",
    "clients/grpc_measure.py": "a gateway's head of fixed size; test_grpc_measure.py",
    "clients/grpc_session.py": "what wire.parse_to_client has accepted",
    "clients/history_file.py": "history_file.read_history, bytes; "
    "history_file.read_history, cells; history, written on",
    "clients/leave.py": "leave.read_left; a key of this device's own making",
    "clients/pause.py": "pause.paused",
    "clients/pipe.py": "pipe.receive; pipe.receive, header",
    "clients/policy.py": "policy.load",
    "clients/status.py": "doctor_files, certificate",
    "clients/status_file.py": "status_file.read_agent; status_file.read_session",
    "clients/bounds.py": "its parent's own words; test_bounds.py",
    "clients/hours.py": "what the policy's own reader refuses too; test_hours.py",
    "clients/usage.py": "usage.parse",
    "clients/update.py": "child's result; session.receive, no model",
    "server/archive.py": "archive.unpack; archive.unpack, manifest",
    "server/backup_form.py": "this server's own databases, and what archive.unpack has compared",
    "server/restore.py": "archive.unpack; archive.unpack, manifest",
    "server/doctor_files.py": "server doctor, server.toml; server doctor, certificate; "
    "server doctor, member list; server doctor, database",
    "server/doctor_live.py": "server doctor, core.json",
    "server/client_times.py": "an entry of this server's own ledger; test_client_times.py",
    "server/core_cli.py": "core_cli.Federation.read, leaf; core_cli.Federation.read, root",
    "server/core_client.py": "core_client._federation_of; core_client._root_of; core_wire events",
    "server/core_commands.py": "core_commands",
    "server/core_socket.py": "credentials that the kernel writes",
    "server/core_watch.py": "core_watch.read_trust; core_watch.read_leaf",
    "server/core_status.py": "core_wire events; what this user's own core service shows",
    "server/core_view.py": "what a run's own ServerApp sends its members",
    "server/status.py": "this server's own certificates; test_status.py",
    "server/core_wire.py": "core_wire commands, bytes; core_wire events",
    "server/evaluator.py": "what the ServerApp that started it asks for",
    "server/evaluator_process.py": "evaluator_process.heard",
    "server/core/rank_wire.py": "what the supervisor and its own ranks say to each other",
    "server/core/torch_shard.py": "what the supervisor of this rank has laid out",
    "server/core/torch_hosts.py": "what the hosts of one private group say to each other",
    "server/core/wing.py": "what the core service that it adds up for has laid out",
    "server/flower_train.py": "flower_train._given",
    "server/front_door.py": "this server's own certificate; test_front_cli.py, test_front_door.py",
    "server/initial.py": "initial.first_model, header; initial.first_model, bytes",
    "server/ledger.py": "ledger, bytes; ledger, cells",
    "server/ledger_file.py": "ledger, bytes; ledger, cells",
    "server/open_round.py": "open_round.kept",
    "server/registry.py": "registry.read",
    "server/run_plan.py": "run_plan.read",
    "server/round_folder.py": "run_directory.read_round, manifest; run_directory.read_round, bytes",
    "server/federation_files.py": "federation_files.authority, issuing.pem; "
    "federation_files.authority, issuing.key",
    "server/issuer.py": "the root that this machine's own `umbel server init` has made",
    "server/issuer_books.py": "certificates that this issuer has signed",
    "server/issuer_commands.py": "issuer_commands.answer",
    "server/issuer_signing.py": "certificates that this issuer has signed",
    "server/issuer_wire.py": "issuer_wire.asked",
    "server/issuer_store.py": "the issuer's own database; test_issuer_files.py",
    "server/roll_ca.py": "the root and its key, which this machine's operator has made",
    "server/server_toml.py": "server_toml.read",
    "simulation/dev_federation.py": "dev_federation.prepare, ca.key; "
    "dev_federation.prepare, nodes/edge-0/tls.pem",
    "server/flower_control.py": "what Flower's client makes of its own SuperLink's answer",
    "simulation/engine/pool_server.py": "what the pool that started it asks for",
    "simulation/engine/pool_wire.py": "what a pool and its own workers say to each other",
    "simulation/engine/torch_group.py": "what the processes of one run say to each other",
    "simulation/engine/work_wire.py": "what the processes of one run say to each other",
    "simulation/fleet/toml.py": "fleet.toml",
    "simulation/fleet/traces.py": "traces.Availability.read; traces.capacity",
    "simulation/sign_cli.py": "a key of this user's own making; test_sign_cli.py",
    "simulation/link.py": "messages of this process, to count them",
    "host/doctor_tls.py": "doctor_tls, certificate; doctor_tls, page",
    "host/doctor_machine.py": "what a process of its own says of imports",
    "host/bundle.py": "it writes an archive, and reads none",
    "host/known_secrets.py": "keys of this user's own directories; test_attacks_support.py",
    "host/processes.py": "processes.read_state",
}
