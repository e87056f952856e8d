"""The launcher against real bundles: what is not approved does not run, and nothing leaves."""

from __future__ import annotations

import os
import stat
import subprocess
import warnings
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from umbel import cli
from umbel.clients import landlock
from umbel.clients.apps import Apps
from umbel.clients.device_files import DeviceFiles
from umbel.clients.flower_launcher import Guard, remove_left, write_launcher
from umbel.clients.history_file import read_history
from umbel.clients.policy import Policy
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused
from umbel.simulation.sign_cli import signed
from umbel.tests.federations import made
from umbel.tests.flower_task import bundle, play

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = """
import os, pathlib
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
pathlib.Path(os.environ["MARKER"]).write_text(os.environ["FLWR_HOME"])

@app.train()
def train(message, context):
    arrays = message.content["arrays"]
    metrics = MetricRecord({"num-examples": 3, "loss": 0.5})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

@app.evaluate()
def evaluate(message, context):
    raise ValueError("patient 4711")
"""
SECURE = PLAIN + "\nimport umbel\napp = umbel.secure(app)\n"


@pytest.fixture
def tmp_path(on_disk: Path) -> Path:
    """Not in memory, which walls leave to all."""
    return on_disk


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A device's directory."""
    federation = made(tmp_path / "federation", 1)
    return federation.device("edge-0")


def environment(device: Path, tmp_path: Path, **more: str) -> dict[str, str]:
    """Return what a SuperExec of this device would hand on."""
    home = tmp_path / "flwr-home"
    home.mkdir(exist_ok=True)
    own = {"UMBEL_DEVICE": str(device), "FLWR_HOME": str(home), "MARKER": str(tmp_path / "marker")}
    return {**os.environ, **own, **more}


def allowed(device: Path, *apps: bytes, required: bool = True) -> None:
    """Let the device's policy list these bundles."""
    repoliced(device, apps=tuple(sha256(app).digest() for app in apps), required=required)


def test_an_unapproved_bundle_leaves_no_marker(device: Path, tmp_path: Path) -> None:
    fab = bundle(tmp_path / "app", SECURE)
    allowed(device, b"another bundle")
    pushed, console = play(tmp_path / "task", fab, environment=environment(device, tmp_path))
    assert not (tmp_path / "marker").exists()
    assert (pushed["error"], pushed["reason"], pushed["details"]) == (True, "", "")
    assert pushed["status"] == 1
    line = f"app not allowed: bundle {sha256(fab).hexdigest()} is not in trust.apps, nor signed"
    assert console.count(line) == 1
    assert "Traceback" not in console
    (entry,) = read_history(device)
    assert (entry.kind, entry.code, entry.key) == ("refusal", "app not allowed", "trust.apps")
    assert entry.app == sha256(fab).hexdigest()
    assert line in entry.reason


INVITE = {
    "run": "r", "gateway": "127.0.0.1:9", "ca-sha256": "00" * 32, "ticket": "00", "lease": 60
}  # fmt: skip


def repoliced(device: Path, **changes: Any) -> None:
    """Change keys of the device's policy; None takes one out."""
    file = device / "policy.toml"
    policy = Policy.load(file)
    own = {name: getattr(policy, name) for name in policy.__slots__}
    file.write_text(Policy(**own | changes).dumps(), "utf-8")


def test_a_new_bundle_waits_one_changed_byte_waits_again_and_nothing_of_either_ran(
    device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UMBEL_DEVICE", str(device))
    repoliced(device, apps=None, approve=True)
    where = environment(device, tmp_path)
    first = bundle(tmp_path / "app", SECURE)
    changed = bundle(tmp_path / "app", SECURE.replace("4711", "4712"))

    def waits(fab: bytes) -> None:
        pushed, console = play(tmp_path / "task", fab, invite=INVITE, environment=where)
        assert not (tmp_path / "marker").exists()
        assert pushed["values"]["umbel.session"]["code"] == pb.REASON_APP_NOT_ALLOWED
        assert (pushed["error"], pushed["details"], pushed["status"]) == (False, "", 1)
        assert "waits for approval" in console
        assert "Traceback" not in console

    waits(first)
    assert cli.main(["client", "apps", "approve", sha256(first).hexdigest()]) == 0
    pushed, console = play(tmp_path / "task", first, invite=INVITE, environment=where)
    assert "invited by another federation" in console  # it ran, as far as this invitation leads
    assert pushed["values"]["umbel.session"]["code"] == pb.REASON_OTHER_FEDERATION
    (tmp_path / "marker").unlink()
    waits(changed)
    assert {known.state for known in Apps(device).known().values()} == {"approved", "waiting"}


@pytest.mark.slow
def test_a_publishers_signature_admits_and_a_changed_file_does_not(
    device: Path, tmp_path: Path
) -> None:
    key = Ed25519PrivateKey.generate()
    bundle(tmp_path / "app", SECURE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Flower's use of pathspec
        signed(tmp_path / "app", key)
    repoliced(device, apps=None, publishers=(key.public_key().public_bytes_raw(),))
    where = environment(device, tmp_path)
    changed = bundle(tmp_path / "app", SECURE + "# more")
    pushed, console = play(tmp_path / "task", changed, invite=INVITE, environment=where)
    assert not (tmp_path / "marker").exists()
    assert pushed["values"]["umbel.session"]["code"] == pb.REASON_APP_NOT_ALLOWED
    assert "nor signed by one of trust.publishers" in console
    good = bundle(tmp_path / "app", SECURE)
    _, console = play(tmp_path / "task", good, invite=INVITE, environment=where)
    assert (tmp_path / "marker").exists()
    assert "invited by another federation" in console


@pytest.mark.slow
def test_where_plain_is_allowed_a_refused_bundle_is_answered_by_its_code_alone(
    device: Path, tmp_path: Path
) -> None:
    allowed(device, b"another bundle", required=False)
    fab = bundle(tmp_path / "app", PLAIN)
    pushed, _ = play(tmp_path / "task", fab, environment=environment(device, tmp_path))
    assert (pushed["error"], pushed["reason"], pushed["details"]) == (True, "app not allowed", "")


READING = """
import os, pathlib
try:
    found = pathlib.Path(os.environ["SECRET"]).read_text()
except PermissionError:
    found = "denied"
pathlib.Path(os.environ["MARKER"]).write_text(found + pathlib.Path(os.environ["DATA"]).read_text())
raise ValueError("enough")
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_a_bundle_reads_the_data_roots_and_nothing_beside_them(
    device: Path, tmp_path: Path
) -> None:
    for name in ("secret", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(f" {name}")
    fab = bundle(tmp_path / "app", READING)
    repoliced(device, apps=None, data_roots=(str(tmp_path / "data"),), disk=1 << 24)
    where = environment(
        device, tmp_path, MARKER=str(device / "marker"),
        SECRET=str(tmp_path / "secret" / "file"), DATA=str(tmp_path / "data" / "file"),
    )  # fmt: skip
    play(device / "play", fab, environment=where)
    assert (device / "marker").read_text() == "denied data"


@pytest.mark.parametrize(
    "key", ["hours", *(pytest.param(k, marks=pytest.mark.slow) for k in ("ready_hook", "disk"))]
)
def test_outside_of_its_limits_a_device_installs_nothing(
    device: Path, tmp_path: Path, key: str
) -> None:
    fab = bundle(tmp_path / "app", SECURE, large="x = '" + "a" * (2 << 20) + "'")
    limit: Any = {"hours": (), "ready_hook": ("/usr/bin/false",), "disk": 1 << 20}[key]
    repoliced(device, apps=None, **{key: limit})
    where = environment(device, tmp_path)
    pushed, console = play(tmp_path / "task", fab, invite=INVITE, environment=where)
    assert not (tmp_path / "marker").exists()
    assert pushed["values"]["umbel.session"]["code"] == pb.REASON_LIMITS
    assert f"limits.{key}" in console
    assert "Traceback" not in console


def test_an_approved_bundle_runs_in_a_home_of_its_own(device: Path, tmp_path: Path) -> None:
    fab = bundle(tmp_path / "app", SECURE)
    allowed(device, fab)
    pushed, _ = play(tmp_path / "task", fab, environment=environment(device, tmp_path))
    home = (tmp_path / "marker").read_text()
    assert home.startswith(str(device / "tasks"))
    assert list((device / "tasks").iterdir()) == []
    assert (pushed["error"], pushed["reason"]) == (True, "")  # no invitation: plain is refused


def test_a_planted_folder_is_not_used(device: Path, tmp_path: Path) -> None:
    fab = bundle(tmp_path / "app", SECURE)
    allowed(device, fab)
    planted = f"tests.tiny.1.0.0.{sha256(fab).hexdigest()[:8]}"
    folder = tmp_path / "flwr-home" / "apps" / planted
    bad = PLAIN.replace('os.environ["FLWR_HOME"]', '"planted"')
    bundle(folder, bad)
    play(tmp_path / "task", fab, environment=environment(device, tmp_path))
    assert (tmp_path / "marker").read_text() != "planted"


def test_a_plain_app_does_not_answer_where_secure_is_required(device: Path, tmp_path: Path) -> None:
    fab = bundle(tmp_path / "app", PLAIN)
    allowed(device, fab)
    pushed, console = play(tmp_path / "task", fab, environment=environment(device, tmp_path))
    assert (pushed["error"], pushed["reason"], pushed["details"]) == (True, "", "")
    assert "plain refused: this app answers with plain updates" in console
    (entry,) = read_history(device)
    assert (entry.code, entry.key) == ("plain refused", "secure.required")
    assert entry.app == sha256(fab).hexdigest()


def test_an_unchanged_app_answers_where_plain_is_allowed(device: Path, tmp_path: Path) -> None:
    fab = bundle(tmp_path / "app", PLAIN)
    allowed(device, fab, required=False)
    where = environment(device, tmp_path)
    pushed, _ = play(tmp_path / "task", fab, environment=where)
    assert pushed["records"] == {"arrays": "ArrayRecord", "metrics": "MetricRecord"}
    assert pushed["status"] == 0


def test_no_word_of_an_exception_leaves(device: Path, tmp_path: Path) -> None:
    code = SECURE.replace(
        "app = umbel.secure(app)",
        "class Loud(type(umbel.secure(app))):\n"
        "    def __call__(self, message, context):\n"
        "        raise ValueError('patient 4711')\n"
        "app = Loud(app, {})",
    )
    fab = bundle(tmp_path / "app", code)
    allowed(device, fab)
    pushed, console = play(tmp_path / "task", fab, environment=environment(device, tmp_path))
    assert (pushed["error"], pushed["reason"], pushed["details"]) == (True, "", "")
    assert "patient 4711" in console  # on the device, where it belongs
    assert "4711" not in str(pushed)


def test_arrays_by_another_way_do_not_leave(device: Path, tmp_path: Path) -> None:
    code = SECURE.replace(
        "app = umbel.secure(app)",
        "class Loud(type(umbel.secure(app))):\n"
        "    def __call__(self, message, context):\n"
        "        return self.wrapped(message, context)\n"
        "app = Loud(app, {})",
    )
    fab = bundle(tmp_path / "app", code)
    allowed(device, fab)
    pushed, _ = play(tmp_path / "task", fab, environment=environment(device, tmp_path))
    assert (pushed["error"], pushed["reason"]) == (True, "")
    assert "records" not in pushed


def test_a_rogue_invitation_gets_a_code_and_no_connection(device: Path, tmp_path: Path) -> None:
    fab = bundle(tmp_path / "app", SECURE)
    allowed(device, fab)
    pushed, console = play(
        tmp_path / "task", fab, invite=INVITE, environment=environment(device, tmp_path)
    )
    code = pb.REASON_OTHER_FEDERATION
    assert pushed["records"] == {"umbel.session": "ConfigRecord"}
    assert pushed["values"]["umbel.session"] == {
        "rounds": 0, "bytes-up": 0, "bytes-down": 0, "code": code
    }  # fmt: skip
    assert "invited by another federation" in console


def test_packages_are_not_installed_at_run_time(device: Path, tmp_path: Path) -> None:
    fab = bundle(tmp_path / "app", PLAIN)
    allowed(device, fab, required=False)
    pushed, console = play(
        tmp_path / "task", fab, environment=environment(device, tmp_path),
        arguments=("--allow-runtime-dependency-installation",),
    )  # fmt: skip
    assert pushed["status"] == 0
    assert "is ignored on this device" in console


def test_what_a_killed_task_left_is_removed(device: Path, tmp_path: Path) -> None:
    left = device / "tasks" / "umbel-task-dead"
    (left / "apps").mkdir(parents=True)
    os.utime(left, (1, 1))
    assert remove_left(device / "tasks") == 1
    assert not left.exists()


def test_a_directory_that_cannot_be_trusted_ends_it_with_one_line(
    device: Path, tmp_path: Path
) -> None:
    (device / "policy.toml").chmod(0o666)
    fab = bundle(tmp_path / "app", PLAIN)
    pushed, console = play(tmp_path / "task", fab, environment=environment(device, tmp_path))
    assert pushed == {"status": 1}
    lines = [line for line in console.splitlines() if line.strip()]
    assert len(lines) == 1
    assert lines[0].startswith(
        f"flwr-clientapp: {device}/policy.toml: expected no write permission"
    )
    assert not (tmp_path / "marker").exists()


def test_the_launcher_is_a_command(tmp_path: Path) -> None:
    file = write_launcher(tmp_path / "bin")
    assert stat.S_IMODE(file.stat().st_mode) == 0o700
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["flwr-clientapp", "--help"], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0
    assert "--runtime-api-address" in done.stdout


@pytest.mark.parametrize(("apps", "holds"), [(None, True), ((), False), ((b"x",), True)])
def test_which_bundles_are_admitted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, apps: Any, holds: bool
) -> None:
    monkeypatch.delenv("UMBEL_APP_SHA256", raising=False)
    pinned = None if apps is None else tuple(sha256(app).digest() for app in apps)
    policy = Policy(apps=pinned)
    guard = Guard(
        DeviceFiles(directory=tmp_path, federation="f", id=b"", gateway="g:1", policy=policy)
    )
    if holds:
        guard.admit(b"x")
        assert os.environ["UMBEL_APP_SHA256"] == sha256(b"x").hexdigest()
    else:
        with pytest.raises(Refused) as caught:
            guard.admit(b"x")
        assert caught.value.reason == pb.REASON_APP_NOT_ALLOWED
        assert "UMBEL_APP_SHA256" not in os.environ
