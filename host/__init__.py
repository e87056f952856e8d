"""Floor 1: programs on one machine, and where they keep their state.

Processes  processes.py is the one supervisor, process_tree.py finds what belongs to it, programs.py
           is how a program is started, waiting.py how something is waited for beside them,
           log_files.py bounds what they say. spawned.py is a process that runs user code.
The disk   places.py is the directory of what this machine remembers, disk_room.py says whether
           databases and logs have room, whole_file.py replaces a file whole and for good;
           unix_socket.py is both ends of a socket that has a path.
Reports    bundle.py is a file for a bug report, known_secrets.py what must not be in it,
           reported.py what it says of the machine.
Commands   lazy_group.py is a group of commands that are imported when one is called, stopping.py
           how one ends that started programs, answer_form.py the option `--format`,
           figures.py what sizes and times look like.
Doctors    doctor.py runs probes and prints what they found; doctor_machine.py looks at any machine,
           doctor_dial.py at the way to a server, doctor_tls.py at what it shows there and
           doctor_front.py at what a front says,
           platforms.py says which are supported, timeouts.py how long the package waits for what.

Clients, server and simulation all stand on it; it knows nothing of any of them.
"""
