"""The compiled messages say what messages.proto says, and the reasons are the published ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2

from umbel.protocol import errors
from umbel.protocol import messages_pb2 as pb

PROTOCOL = Path(pb.__file__).parent
SOURCE = re.sub(r"//[^\n]*", "", (PROTOCOL / "messages.proto").read_text("utf-8"))

# The one list of reasons that may travel (docs/protocol.md), in the order of their numbers from 1.
REASONS = """other federation, gateway name, app not allowed, protocol too old, plain refused,
scheme, policy, limits, certificate, member list, ctx differs, roster, shares, survivors, votes,
would difference, attempt closed, new process, journal, not finite, undeclared metric, task failed,
goodbye, paused"""

_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
Field = tuple[str, int, str, bool]  # name, number, type, repeated


def _file() -> Any:
    """Return the compiled file's own description of itself."""
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    return file


def _blocks(kind: str) -> dict[str, str]:
    """Return name to body of each `kind NAME { ... }`; a oneof's braces are inside a body."""
    pattern = rf"^{kind} (\w+) \{{(\}}|.*?^\}})"
    return dict(re.findall(pattern, SOURCE, re.MULTILINE | re.DOTALL))


def _written(body: str) -> set[Field]:
    return {(name, int(n), kind, bool(many)) for many, kind, name, n in _FIELD.findall(body)}


def _compiled(message: Any) -> set[Field]:
    def kind(field: Any) -> str:
        if field.type_name:
            return str(field.type_name).removeprefix(".umbel.v1.")
        return str(field.Type.Name(field.type)).removeprefix("TYPE_").lower()

    return {(f.name, f.number, kind(f), f.label == f.LABEL_REPEATED) for f in message.field}


def test_the_compiled_messages_are_those_of_the_source() -> None:
    written = {name: _written(body) for name, body in _blocks("message").items()}
    assert {message.name: _compiled(message) for message in _file().message_type} == written
    assert sum(map(len, written.values())) == len(_FIELD.findall(SOURCE))  # none was passed over


def test_the_compiled_oneofs_are_those_of_the_source() -> None:
    written = {
        name: _written(inner)
        for name, body in _blocks("message").items()
        for inner in re.findall(r"oneof \w+ {(.*?)}", body, re.DOTALL)
    }
    compiled = {}
    for message in _file().message_type:
        chosen = {field.name for field in message.field if field.HasField("oneof_index")}
        if chosen:
            compiled[message.name] = {f for f in _compiled(message) if f[0] in chosen}
    assert compiled == written
    assert set(written) == {"Down", "Setting", "ToClient", "ToServer", "Up"}


def test_the_compiled_enums_are_those_of_the_source() -> None:
    written = {
        name: [(key, int(number)) for key, number in re.findall(r"(\w+) = (\d+);", body)]
        for name, body in _blocks("enum").items()
    }
    assert written == {
        enum.name: [(value.name, value.number) for value in enum.value]
        for enum in _file().enum_type
    }


def test_the_package_is_the_published_one() -> None:
    assert (_file().package, _file().syntax) == ("umbel.v1", "proto3")
    assert 'syntax = "proto3";' in SOURCE
    assert "package umbel.v1;" in SOURCE


def test_the_reasons_are_exactly_the_published_list() -> None:
    published = [" ".join(reason.split()) for reason in REASONS.split(",")]
    compiled = [pb.Reason.Name(number) for number in sorted(pb.Reason.values()) if number]
    assert [
        name.removeprefix("REASON_").replace("_", " ").lower() for name in compiled
    ] == published
    assert [errors.reason_text(getattr(pb, name)) for name in compiled] == published
    assert sorted(pb.Reason.values()) == list(range(len(published) + 1))


def test_the_compiler_was_the_pinned_one() -> None:
    # grpcio-tools 1.71.2 writes this line; a newer gencode would refuse protobuf 5.29
    head = (PROTOCOL / "messages_pb2.py").read_text("utf-8")[:400]
    assert "# Protobuf Python Version: 5.29.0\n" in head
