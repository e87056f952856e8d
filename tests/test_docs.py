"""The documents say what the code does, wherever a program can compare the two."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from umbel.clients import flower_client_app, grpc_line, grpc_session, policy
from umbel.clients.flower_launcher import INVITE, SESSION
from umbel.clients.grpc_transfer import CTX, OFFSET, RUN
from umbel.clients.policy import Policy
from umbel.host.timeouts import times
from umbel.protocol import errors, plan, replay, shamir, wire
from umbel.protocol import journal as records
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.certificates import SIGNING_OID
from umbel.protocol.digest import model_digest
from umbel.protocol.frames import Kind, frames
from umbel.protocol.graph import parameters
from umbel.protocol.round_table import ROUND_TABLE
from umbel.protocol.scheme_a import Role, diagram
from umbel.server import core_cli, core_service, flower_invitations, grpc_gateway, sessions
from umbel.server.endings import Ending
from umbel.simulation.drops import BOUNDARIES

ROOT = Path(__file__).resolve().parents[1]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text("utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
PRIVACY = (ROOT / "docs" / "privacy.md").read_text("utf-8")
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/**/*.md")]
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)
SOURCES = sorted(
    path
    for pattern in ("*.py", "*.md", "*.proto", "*.toml", "*.tmpl", "Makefile")
    for path in [*ROOT.glob(pattern), *ROOT.glob(f"[!.]*/**/{pattern}")]  # not into environments
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    and path != Path(__file__).resolve()
)
PARTS = (
    "protocol",
    "host",
    "strategies",
    "clients",
    "server",
    "server/core",
    "simulation",
    *(f"simulation/{name}" for name in ("capacity", "clock", "data", "engine", "fitting")),
    *(f"simulation/{name}" for name in ("fleet", "native", "pages")),
    "benchmarks",
)
ABSENT = "absent"


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of every table row below a heading, without backticks."""
    section = page.split(f"\n{heading}", 1)[1]
    section = re.split(r"\n#{2,3} ", section, maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [[cell.strip().replace("`", "") for cell in row] for row in cells]


def blocks(page: str, kind: str) -> list[str]:
    """Return the content of every fenced block of a kind."""
    return re.findall(rf"```{kind}\n(.*?)\n```", page, re.DOTALL)


def vectors() -> dict[str, str]:
    """Return the published values of protocol.md by name."""
    lines = [line for block in blocks(PROTOCOL, "vectors") for line in block.splitlines()]
    return dict(line.split(" = ") for line in lines)


# ---- protocol.md -------------------------------------------------------------------------------


def test_the_diagrams_are_drawn_from_the_tables() -> None:
    steps = (f"    {phase} --> {to}: {event}" for (phase, event), to in ROUND_TABLE.items())
    rounds = "\n".join(["stateDiagram-v2", *steps])
    drawn = blocks(PROTOCOL, "mermaid")
    assert drawn == [diagram(Role.MEMBER), diagram(Role.SERVER), rounds]


def test_every_reason_is_in_the_table() -> None:
    listed = [(row[0], row[1]) for row in rows(PROTOCOL, "### 4.4") if row[0].isdigit()]
    codes = [cast("pb.Reason", code) for code in pb.Reason.values() if code]
    assert listed == [(str(code), errors.reason_text(code)) for code in codes]


def test_every_message_is_in_the_table() -> None:
    listed = {row[0] for row in rows(PROTOCOL, "### 4.1")}
    for message in (pb.ToClient, pb.ToServer):
        for field in message.DESCRIPTOR.oneofs_by_name["body"].fields:
            assert field.message_type is not None
            assert field.message_type.name in listed


def test_every_parameter_is_in_the_table() -> None:
    listed = {name for row in rows(PROTOCOL, "### 6.4") for name in row[0].split(", ")}
    assert set(plan.KINDS) == listed - {"key", "---"}


def test_the_numbers_of_the_tables() -> None:
    small, _, losses, *rest = rows(PROTOCOL, "### 6.1")
    for sizes, numbers in zip(small[1:], losses[1:], strict=True):
        for n in map(int, sizes.split(", ")):
            p = parameters(n)
            assert f"{p.a}, {p.d}" == numbers
    large, _, degrees = rest
    for size, numbers in zip(large[1:], degrees[1:], strict=True):
        p = parameters(int(size))
        assert f"{p.k}, {p.t}" == numbers


def test_every_boundary_of_a_loss_is_explained() -> None:
    listed = [name for row in rows(PROTOCOL, "### 5.10")[2:] for name in row[0].split(", ")]
    assert listed == list(BOUNDARIES)


def test_the_signing_oid_and_the_journal_line() -> None:
    assert f"`{SIGNING_OID.dotted_string}`" in PROTOCOL
    assert records.encode(records.Keyed(bytes(range(32)))).decode() in PROTOCOL


def test_published_vectors_are_those_of_the_file() -> None:
    published: dict[str, Any] = json.loads(
        (ROOT / "tests" / "vectors" / "transcript.json").read_text("utf-8")
    )
    said = vectors()
    assert said["canonical"] == published["canonical"][1]["bytes"]
    for name in ("ctx0", "ctx"):
        assert said[name] == published["context"][name]
    assert said["roster root"] == published["context"]["roster_root"]
    bits = next(case for case in published["bitmaps"] if case["n"] == 10)
    assert (said["bitmap"], said["H(bitmap)"]) == (bits["bytes"], bits["sha256"])
    derived = ("shared", "pair_key", "self_key", "seal_key", "commitment", "pair_stream_64", "blob")
    for name in (*derived, "signed", "signature"):
        assert said[name] == published["keys"][name]


def test_the_other_vectors() -> None:
    said = vectors()
    assert said['digest of "umbel"'] == sha256(b"\x00umbel").hexdigest()
    assert said['digest of "umbel"'] == model_digest(b"umbel").hex()
    assert said["frame"] == next(frames(Kind.UPLOAD, bytes(range(32)), b"umbel")).hex()

    def coefficients(buffer: bytearray | memoryview) -> None:
        buffer[:] = bytes([0x11, 0x22])

    shares = shamir.split(b"\x2a", 3, 5, entropy=coefficients)
    assert said["shamir shares"] == shares.tobytes().hex()
    for points in ((1, 2, 4), (3, 7, 200)):
        name = f"weights of {', '.join(map(str, points))}"
        assert said[name] == shamir.weights(np.array([points])).tobytes().hex()


# ---- protocol.md, over the network ------------------------------------------------------------


def test_every_message_of_the_contract_is_named() -> None:
    for name in pb.DESCRIPTOR.message_types_by_name:
        assert f"`{name}`" in PROTOCOL, name


def test_the_stream_s_messages_have_the_listed_fields() -> None:
    listed = {row[0]: row[1].split(", ") for row in rows(PROTOCOL, "### 11.2")[2:]}
    assert set(listed) == {"Up", "Down", "Hello", "Welcome", "Trust", "FetchRequest"}
    for name, fields in listed.items():
        message = pb.DESCRIPTOR.message_types_by_name[name]
        assert fields == [field.name for field in message.fields], name


def test_the_methods_and_the_metadata_are_those_of_both_ends() -> None:
    assert f"/{grpc_gateway.SERVICE}" == grpc_line.SERVICE
    for name in (grpc_gateway.SERVICE, RUN, CTX, OFFSET):
        assert f"`{name}`" in PROTOCOL, name


def test_every_ending_is_in_the_table_with_what_a_device_does() -> None:
    listed = rows(PROTOCOL, "### 11.8")[2:]
    assert [(row[0], row[1]) for row in listed] == [ending.value for ending in Ending]
    final = {code.name for code in grpc_line.FOR_GOOD}
    for status, _, _, reaction in listed[1:]:
        known = {"gives up"} if status in final else {"tries again"}
        if status == "FAILED_PRECONDITION":  # a line begins anew, a transfer waits for its line
            known = {"tries again", "joins anew"}
        assert reaction in known, status


def test_the_limits_and_times_are_those_of_the_code() -> None:
    options = dict(grpc_gateway.options(core_cli.CONNECTIONS))
    own = dict(grpc_line.OPTIONS)
    assert grpc_line.BEAT_S == grpc_gateway.BEAT
    assert 2 * grpc_gateway.BEAT < sessions.SILENCE
    mib = wire.MAX_MESSAGE >> 20
    expected = {
        "one gRPC message": f"{mib} MiB + {wire.MAX_ENVELOPE - wire.MAX_MESSAGE} bytes",
        "metadata of a call": f"{options['grpc.max_metadata_size']} bytes",
        "connections, and sessions, of a gateway": f"{core_cli.CONNECTIONS} unless set",
        "calls at a time on a connection": f"{grpc_gateway.STREAMS}",
        "TLS handshake": f"{grpc_gateway.HANDSHAKE:.0f} s",
        "first message of a stream": f"{grpc_gateway.HELLO:.0f} s",
        "a sign of life on a stream, by either side": f"every {grpc_gateway.BEAT:.0f} s",
        "silence of a node that ends its stream": f"{sessions.SILENCE:.0f} s",
        "ping of a device where nothing comes": f"after {own['grpc.keepalive_time_ms'] // 1000} s",
        "answer to it": f"{own['grpc.http2.ping_timeout_ms'] // 1000} s",
        "ping of the gateway, and answer to it": (
            f"after {options['grpc.keepalive_time_ms'] // 1000} s, "
            f"{options['grpc.http2.ping_timeout_ms'] // 1000} s"
        ),
        "unacknowledged messages": f"{replay.MAX_MESSAGES}",
        "their bytes": f"{replay.MAX_BYTES >> 20} MiB",
        "messages after which an ack is due": f"{replay.OWED_MESSAGES}",
        "bytes after which an ack is due": f"{replay.OWED_BYTES >> 10} KiB",
        "wait for a resumed stream": f"{sessions.GRACE:.0f} s",
        "wait for a next ServerApp": f"{sessions.SUCCESSOR:.0f} s",
        "an upload's wait for its sum": f"{core_service.PATIENCE:.0f} s",
        "models that can be fetched": "1",
        "the device's wait for its gateway": f"{grpc_session.AWAY_S:.0f} s",
        "longest life of a session": f"{grpc_session.LONGEST_S / 3600:.0f} h",
    }
    assert {row[0]: row[1] for row in rows(PROTOCOL, "### 11.9")[2:]} == expected
    assert f"less than {core_service.HIGH_WATER >> 20} MiB of events" in PROTOCOL


def test_invitation_and_answer_have_the_listed_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    core: Any = type("Core", (), {"run": "r-1", "gateway": "localhost:1", "ca": bytes(32)})
    inviting = flower_invitations.Invitations(cast("Any", None), dict, core, {"seed": 0})
    invitation = inviting._message(1, cast("Any", None), b"ticket")
    assert set(invitation.content) == {"config", flower_invitations.RECORD}
    assert flower_invitations.RECORD == INVITE == "umbel.invite"
    record = invitation.content[flower_invitations.RECORD]
    assert [row[0] for row in rows(PROTOCOL, "### 12.1")[2:]] == list(record)

    asked = Message(RecordDict({"config": ConfigRecord()}), dst_node_id=1, message_type="train")
    answer = flower_client_app._report(asked, grpc_session.Outcome(pb.REASON_GOODBYE)).content
    assert list(answer) == [SESSION] == [flower_invitations.ANSWER] == ["umbel.session"]
    listed = [name for row in rows(PROTOCOL, "### 12.3")[2:] for name in row[0].split(", ")]
    assert listed == list(answer[SESSION])


# ---- operations.md -----------------------------------------------------------------------------


def test_every_time_that_anything_waits_is_in_the_list() -> None:
    """A new one needs its row: what it is, and what happens when it is over."""
    listed = {row[0]: row[1] for row in rows(OPERATIONS, "## 9.")[2:]}
    found = times(ROOT, (*PARTS[:-1], "."))
    assert listed == {time.where: time.value for time in found}


# ---- privacy.md --------------------------------------------------------------------------------


def test_the_first_paragraph_says_what_stands_outside_the_protocol() -> None:
    first = " ".join(PRIVACY.split("\n\n")[1].split())
    for words in (
        "the app bundle",
        "the CA",
        "honest-but-curious server only",
        "(development CA)",
        "app: not pinned",
        "`umbel simulate`",
    ):
        assert words in first


def test_every_key_of_the_policy_is_listed_with_its_default() -> None:
    defaults = tomllib.loads(Policy().dumps())
    expected = {}
    for key in policy._KEYS:
        table, name = key.split(".")
        value = defaults[table].get(name, ABSENT)
        expected[key] = ABSENT if value is ABSENT else json.dumps(value)
    assert {row[0]: row[1] for row in rows(PRIVACY, "## 10.")[2:]} == expected


# ---- the stories of the parts ------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
def test_every_module_has_its_sentence_in_the_story_of_its_part(part: str) -> None:
    story = ast.get_docstring(ast.parse((ROOT / part / "__init__.py").read_text("utf-8"))) or ""
    modules = {path.name for path in (ROOT / part).glob("*.py")} - {"__init__.py"}
    assert set(re.findall(r"\w+\.py\b", story)) == modules


# ---- README.md ---------------------------------------------------------------------------------


def test_the_task_of_the_readme_runs(tmp_path: Path) -> None:
    (program,) = blocks((ROOT / "README.md").read_text("utf-8"), "python")
    (tmp_path / "blobs.py").write_text(program, "utf-8")
    done = subprocess.run(
        [sys.executable, "blobs.py"],
        cwd=tmp_path,
        env=os.environ | {"UMBEL_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("on (development CA) {'eval.accuracy': 0."), done.stderr


# ---- all pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_and_named_pages_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), target
    for named in re.findall(r"`((?:docs|tests)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), named


def test_sections_that_the_source_cites_exist() -> None:
    sections = set(re.findall(r"^#{2,3} (\d+(?:\.\d+)?)\.? ", PROTOCOL, re.MULTILINE))
    cited = r"docs/protocol\.md, sections? (\d+(?:\.\d+)?)(?: and (\d+(?:\.\d+)?))?"
    found = 0
    for path in SOURCES:
        text = " ".join(re.sub(r"^\s*(#|//)", "", path.read_text("utf-8"), flags=re.M).split())
        for match in re.finditer(cited, text):
            found += 1
            assert {number for number in match.groups() if number} <= sections, path
    assert found


def test_nothing_cites_a_page_that_readers_do_not_have() -> None:
    internal = r"\bS \d+\.\d|\b(trust|aggregation|secure-aggregation|design|user-problems)\.md"
    for path in SOURCES:
        found = re.search(internal, path.read_text("utf-8"))
        assert not found, f"{path.relative_to(ROOT)}: {found}"
