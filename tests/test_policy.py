"""The device's policy: strict to read, and the server can only be stricter than it."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.clients.policy import Policy
from umbel.protocol.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

NO_APP = bytes(32)
APP = b"\x9f" * 32

FULL = """\
[trust]
federation = "north-clinics"
ca = "/var/lib/umbel/north-clinics/ca.pem"
gateways = ["fl.example.org", "192.0.2.7"]
apps = ["9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f"]
publishers = ["9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f9f"]
approve = true
min_protocol = 2
[secure]
required = false
schemes = []
corrupt = 0.2
corrupt_min = 2
max_corrupt_members = 3
dropout = 0
min_members = 10
min_survivors = 9
min_difference = 4
min_sites = 2
[update]
max_weight = 7
max_value_range = 1
l2_clip = 10.5
histogram = true
[clear]
metrics = ["loss", "eval.correct"]
[limits]
model_bytes = 1000
rounds_per_day = 200
hours = ["22:00-06:00", "12:00-24:00"]
bytes_per_day = 5
metered_bytes_per_day = 0
metered_interfaces = ["wwan*"]
metered_hook = ["/bin/metered"]
ready_hook = ["/bin/ready", "80 %"]
memory = 268435456
threads = 1
disk = 1048576
data_roots = ["/srv/data"]
"""

# Line by line, as the table of docs/privacy.md, section 10, has them.
DEFAULTS = {
    "federation": None,
    "ca": None,
    "gateways": None,
    "apps": None,
    "publishers": None,
    "approve": False,
    "min_protocol": 1,
    "required": True,
    "schemes": ("A",),
    "corrupt": 0.1,
    "corrupt_min": 1,
    "max_corrupt_members": None,
    "dropout": 0.1,
    "min_members": 5,
    "min_survivors": 4,
    "min_difference": 0,
    "min_sites": 0,
    "max_weight": 1048576,
    "max_value_range": 8.0,
    "l2_clip": None,
    "histogram": False,
    "metrics": (),
    "model_bytes": 4294967296,
    "rounds_per_day": 1000,
    "hours": None,
    "bytes_per_day": None,
    "metered_bytes_per_day": None,
    "metered_interfaces": None,
    "metered_hook": None,
    "ready_hook": None,
    "memory": None,
    "threads": None,
    "disk": None,
    "data_roots": None,
}


def mistake(text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        Policy.parse(text, "policy.toml")
    return str(caught.value)


# -- reading ------------------------------------------------------------------------------


def test_every_key_has_its_built_in_value() -> None:
    assert {field.name: getattr(Policy(), field.name) for field in fields(Policy)} == DEFAULTS
    assert Policy.parse("", "none") == Policy()
    assert Policy.parse("[secure]\n[limits]\n", "empty tables") == Policy()


def test_every_key_can_be_set() -> None:
    policy = Policy.parse(FULL, "full")
    assert {field.name: getattr(policy, field.name) for field in fields(Policy)} == {
        "federation": "north-clinics",
        "ca": "/var/lib/umbel/north-clinics/ca.pem",
        "gateways": ("fl.example.org", "192.0.2.7"),
        "apps": (APP,),
        "publishers": (APP,),
        "approve": True,
        "min_protocol": 2,
        "required": False,
        "schemes": (),
        "corrupt": 0.2,
        "corrupt_min": 2,
        "max_corrupt_members": 3,
        "dropout": 0.0,
        "min_members": 10,
        "min_survivors": 9,
        "min_difference": 4,
        "min_sites": 2,
        "max_weight": 7,
        "max_value_range": 1.0,
        "l2_clip": 10.5,
        "histogram": True,
        "metrics": ("loss", "eval.correct"),
        "model_bytes": 1000,
        "rounds_per_day": 200,
        "hours": ("22:00-06:00", "12:00-24:00"),
        "bytes_per_day": 5,
        "metered_bytes_per_day": 0,
        "metered_interfaces": ("wwan*",),
        "metered_hook": ("/bin/metered",),
        "ready_hook": ("/bin/ready", "80 %"),
        "memory": 1 << 28,
        "threads": 1,
        "disk": 1 << 20,
        "data_roots": ("/srv/data",),
    }
    assert all(getattr(policy, name) != value for name, value in DEFAULTS.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[secure]\nmin_members = 2", "policy.toml:2: secure.min_members: expected an integer, 3"),
        ("\n[secure]\n\nmin_survivors=2", "policy.toml:4: secure.min_survivors: expected an int"),
        ("[secure]\ncorrupt_min = 0", "policy.toml:2: secure.corrupt_min: expected an integer, 1"),
        ("[secure]\ncorrupt = 1.0", ":2: secure.corrupt: expected a number, 0 or more and below"),
        ("[secure]\ncorrupt = -0.1", ":2: secure.corrupt: expected a number, 0 or more"),
        ("[secure]\ncorrupt = nan", ":2: secure.corrupt: expected a number, 0 or more"),
        ("[secure]\ncorrupt = true", ":2: secure.corrupt: expected a number"),
        ("[secure]\ndropout = 1", ":2: secure.dropout: expected a number, 0 or more and below 1"),
        ("[secure]\ndropout = '0.1'", ":2: secure.dropout: expected a number"),
        ("[secure]\nmax_corrupt_members = -1", ":2: secure.max_corrupt_members: expected an int"),
        ("[secure]\nmin_members = 5.0", ":2: secure.min_members: expected an integer, 3 or more"),
        ("[secure]\nmin_members = true", ":2: secure.min_members: expected an integer"),
        ("[secure]\nmin_members = 9223372036854775808", ":2: secure.min_members: expected an int"),
        ("[secure]\nmin_difference = -1", ":2: secure.min_difference: expected an integer, 0"),
        ("[secure]\nmin_sites = '2'", ":2: secure.min_sites: expected an integer, 0 or more"),
        ("[secure]\nrequired = 1", ":2: secure.required: expected true or false, got 1"),
        ("[secure]\nrequired = 'false'", ":2: secure.required: expected true or false"),
        ("[secure]\nschemes = 'A'", ":2: secure.schemes: expected a list of schemes"),
        ("[secure]\nschemes = ['a']", ":2: secure.schemes: expected a list of schemes"),
        ("[secure]\nschemes = ['A', 'plain']", ":2: secure.schemes: expected a list of schemes"),
        ("[trust]\napps = ['9f2c']", ":2: trust.apps: expected a list of SHA-256 digests"),
        (f"[trust]\napps = ['{'9F' * 32}']", ":2: trust.apps: expected a list of SHA-256"),
        (f"[trust]\napps = '{'9f' * 32}'", ":2: trust.apps: expected a list of SHA-256"),
        ("[trust]\npublishers = ['9f2c']", ":2: trust.publishers: expected a list of Ed25519 pub"),
        ("[trust]\napprove = 'yes'", ":2: trust.approve: expected true or false"),
        ("[trust]\nfederation = 'North'", ":2: trust.federation: expected 1 to 63 of a-z"),
        ("[trust]\nca = 'ca.pem'", ":2: trust.ca: expected the absolute path of the pinned root"),
        ("[trust]\ngateways = ['']", ":2: trust.gateways: expected a list of DNS or IP names"),
        ("[trust]\ngateways = [7]", ":2: trust.gateways: expected a list of DNS or IP names"),
        ("[trust]\nmin_protocol = 0", ":2: trust.min_protocol: expected an integer, 1 or more"),
        ("[update]\nmax_weight = 0", ":2: update.max_weight: expected an integer, 1 or more"),
        ("[update]\nmax_value_range = 0.0", ":2: update.max_value_range: expected a finite"),
        ("[update]\nmax_value_range = inf", ":2: update.max_value_range: expected a finite"),
        (f"[update]\nl2_clip = 1{'0' * 400}", ":2: update.l2_clip: expected a finite number"),
        ("[clear]\nmetrics = ['a b']", ":2: clear.metrics: expected a list of names of metrics"),
        ("[limits]\nmodel_bytes = 0", ":2: limits.model_bytes: expected an integer, 1 or more"),
        ("[limits]\nrounds_per_day = 0", ":2: limits.rounds_per_day: expected an integer, 1"),
        ("[limits]\nhours = ['22:00']", ":2: limits.hours: expected a list of windows 'HH:MM-HH"),
        ("[limits]\nhours = ['25:00-06:00']", ":2: limits.hours: expected a list of windows"),
        ("[limits]\nhours = ['06:00-06:00']", ":2: limits.hours: expected a list of windows"),
        ("[limits]\nhours = '06:00-07:00'", ":2: limits.hours: expected a list of windows"),
        ("[limits]\nbytes_per_day = 0", ":2: limits.bytes_per_day: expected an integer, 1 or more"),
        ("[limits]\nmetered_bytes_per_day = -1", ":2: limits.metered_bytes_per_day: expected an i"),
        ("[limits]\nmetered_bytes_per_day = 1", "limits.metered_bytes_per_day: expected metered_i"),
        ("[limits]\nmetered_interfaces = ['']", ":2: limits.metered_interfaces: expected a list"),
        ("[limits]\nmetered_hook = []", ":2: limits.metered_hook: expected a list: the absolute"),
        ("[limits]\nready_hook = ['idle']", ":2: limits.ready_hook: expected a list: the absolute"),
        ("[limits]\nready_hook = '/bin/idle'", ":2: limits.ready_hook: expected a list: the abso"),
        ("[limits]\nmemory = 268435455", ":2: limits.memory: expected an integer, 268435456 or m"),
        ("[limits]\nthreads = 0", ":2: limits.threads: expected an integer, 1 or more"),
        ("[limits]\ndisk = 1048575", ":2: limits.disk: expected an integer, 1048576 or more"),
        ("[limits]\ndata_roots = ['data']", ":2: limits.data_roots: expected a list of absolute"),
        # unknown, misplaced or malformed
        ("[secure]\nmin_member = 9", ":2: secure.min_member: expected one of the keys required,"),
        ("[limits]\nmin_members = 9", ":2: limits.min_members: expected one of the keys model_b"),
        ("[trust]\n[trust.more]\nx = 1", ":2: trust.more: expected one of the keys federation"),
        ("[server]\nx = 1", ":1: server: expected one of the tables trust, secure, update, clear,"),
        ("min_members = 9", ":1: min_members: expected one of the tables trust"),
        ("\nsecure = 1", ":2: secure: expected one of the tables trust"),
        ("[[secure]]\nmin_members = 9", ":1: secure: expected one of the tables trust"),
        ("secure = {min_members = 1}", ":1: secure.min_members: expected an integer, 3 or more"),
        ("secure.min_members = 1", ":1: secure.min_members: expected an integer, 3 or more, got 1"),
        ("[secure]\nmin_members = 9\nmin_members = 9", "policy.toml:3: expected valid TOML"),
        ("[secure]\nmin_members =", "policy.toml:2: expected valid TOML"),
        ("[secure", "policy.toml:1: expected valid TOML"),
        ("[secure]\nx = '''", "policy.toml:2: expected valid TOML"),
        ("\nx = " + "[" * 100_000, "policy.toml:2: expected valid TOML, got 'it nests too deep'"),
        ("x = " + "9" * 5000, "policy.toml:1: expected valid TOML, got 'an integer of thousands"),
        ("[secure]\nmin_members = 0x" + "f" * 5000, ":2: secure.min_members: expected an integer"),
        ("[secure]\ndropout = 0x" + "f" * 5000, ":2: secure.dropout: expected a number"),
    ],
)
def test_a_mistake_names_its_line_and_its_key(text: str, message: str) -> None:
    assert message in mistake(text)


def test_the_value_is_in_the_message() -> None:
    assert mistake("[secure]\nmin_members = 2").endswith("got 2")


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("[secure]\nmin_members = 7\n")
    path.chmod(0o600)
    assert Policy.load(path) == Policy(min_members=7)
    path.write_text("[secure]\nmin_members = 2\n")
    with pytest.raises(SettingsError, match=f"^{path}:2: secure.min_members: "):
        Policy.load(path)
    path.chmod(0o666)
    with pytest.raises(SettingsError, match="no write permission but the owner's"):
        Policy.load(path)
    path.unlink()  # a file that is named and absent is no reason for the built-in values
    with pytest.raises(SettingsError, match="a readable file"):
        Policy.load(path)


@pytest.mark.parametrize(
    "values",
    [{"min_members": 2}, {"min_members": None}, {"required": None}, {"corrupt": math.nan}],
)
def test_a_policy_made_in_code_holds_what_a_file_may_hold(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"policy: secure.{next(iter(values))}: expected"):
        Policy(**values)


names = st.text(st.characters(codec="utf-8"), max_size=12)


@given(
    ca=st.none() | names.map("/{}".format),
    gateways=st.none() | st.lists(names, max_size=2).map(tuple),
    apps=st.none() | st.lists(st.binary(min_size=32, max_size=32), max_size=2).map(tuple),
    corrupt=st.floats(0, 1, exclude_max=True),
    histogram=st.booleans(),
    l2_clip=st.none() | st.floats(0, exclude_min=True, allow_infinity=False),
    model_bytes=st.integers(1, 2**63 - 1),
    required=st.booleans(),
)
def test_dumps_reads_back(**values: Any) -> None:
    try:
        policy = Policy(**values)
    except SettingsError:
        return
    assert Policy.parse(policy.dumps(), "dumped") == policy


def test_dumps_writes_every_key_that_is_present() -> None:
    policy = Policy.parse(FULL, "full")
    assert Policy.parse(policy.dumps(), "dumped") == policy
    assert policy.dumps().count(" = ") == len(fields(Policy))
    assert "max_corrupt_members" not in Policy().dumps()


def test_a_policy_says_what_it_leaves_open() -> None:
    assert Policy().remarks() == (
        "app: not pinned",
        "corrupt members of the federation: not bounded",
    )
    assert Policy(apps=(), max_corrupt_members=0).remarks() == ()
    assert Policy(required=False).remarks()[-1] == "secure aggregation: not required"
