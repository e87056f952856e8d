"""What an attacker finds afterwards, or in the bytes that pass: secrets, keys, metrics.

Reference list: 14, 19 and 22. Runs are whole: coordinator, sessions, link and disk. What
was secret is known here because the test draws it: the devices' entropy is the operating
system's, and each buffer that it filled is remembered.
"""

from __future__ import annotations

import copy
import hashlib
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from umbel.protocol import keys, layout, masks, member, shamir
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.entropy import os_entropy
from umbel.simulation.drops import Drop
from umbel.tests.actors import Game, refuses
from umbel.tests.gateway import Gateway, Numbers, Play
from umbel.tests.rounds import Fixed, Stage, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from umbel.strategies.trainer import TrainResult


# ---- 22: secrets ---------------------------------------------------------------------------------


class Remembered:
    """The operating system's entropy, and every buffer that it filled."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self.buffers: list[tuple[bytearray, bytes]] = []

    def __call__(self, buffer: bytearray | memoryview) -> None:
        """Fill the buffer."""
        os_entropy(buffer)
        if isinstance(buffer, bytearray):
            self.buffers.append((buffer, bytes(buffer)))

    def drawn(self) -> list[bytes]:
        """Return what was drawn."""
        return [drawn for _, drawn in self.buffers]

    def left(self) -> int:
        """Return how many buffers still hold a byte of what was drawn."""
        return sum(any(buffer) for buffer, _ in self.buffers)


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytearray, bytes]]:
    """Remember every derived key, every X25519 secret and every share that was opened."""
    seen: list[tuple[bytearray, bytes]] = []

    def remember(where: object, name: str) -> None:
        genuine = getattr(where, name)

        def wrapped(*args: Any, **options: Any) -> Any:
            made = genuine(*args, **options)
            for one in made if isinstance(made, tuple) else (made,):
                seen.append((one, bytes(one)))
            return made

        monkeypatch.setattr(where, name, wrapped)

    for name in ("pair_key", "self_key", "seal_key", "unseal"):
        remember(keys, name)
    remember(keys.KeyPair, "exchange")
    return seen


@pytest.fixture
def open_gateway(tmp_path: Path) -> Iterator[Callable[..., Gateway]]:
    """Return a maker of gateways, closed at the end."""
    opened: list[Gateway] = []

    def make(n: int = 5, **options: Any) -> Gateway:
        opened.append(Gateway(n, tmp_path / str(len(opened)), **options))
        return opened[-1]

    yield make
    for gateway in opened:
        gateway.close()


def _found(secrets: list[bytes], hay: bytes) -> list[bytes]:
    """Return the secrets that occur, raw or in hex; long ones by their first 32 bytes."""
    return [s for s in secrets if s[:32] in hay or s[:32].hex().encode() in hay.lower()]


def test_whoever_reads_logs_journals_traffic_and_names_of_objects_finds_no_secret(
    open_gateway: Callable[..., Gateway], derived: list[tuple[bytearray, bytes]]
) -> None:
    entropy = Remembered()
    gateway = open_gateway(6, entropy=entropy)
    play = Play(gateway, gateway.terms()).to_votes(lost=[5])
    # In the middle of the attempt, with every secret alive:
    alive = entropy.drawn() + [bytes(one) for _, one in derived]
    assert len(entropy.drawn()) == 6 * 5  # two round keys, a seed, coefficients, rounding
    assert len(derived) > 100
    objects: list[Any] = [*gateway.sessions, *gateway.people, *gateway.updates]
    for session in gateway.sessions:
        inner = session._member
        if inner is not None:
            objects += [inner, inner._at, inner._mask, inner._seal, inner._identity]
        objects.append(session._device)
    shown = "\n".join(f"{one!r} {one!s}" for one in objects).encode()
    failed = refuses(pb.REASON_VOTES, lambda: gateway.sessions[0]._member.votes(pb.Votes()))  # type: ignore[union-attr]
    shown += f"{failed!r} {failed}".encode()
    play.releases()
    gateway.start(0, pb.Start(run="r", model_digest=bytes(32), phase=pb.PHASE_TRAIN))
    shown += "\n".join(line for log in gateway.logs for line in log).encode()
    shown += b"".join(gateway.journal_path(i).read_bytes() for i in range(6))
    assert _found(alive, shown) == []
    # Upwards: no secret either, but the shares that were asked for.
    asked = {bytes(s) for _, m in gateway.up for s in m.release.shares}
    sent = b"".join(m.SerializeToString() for _, m in gateway.up)
    assert [s for s in _found(alive, sent) if s not in asked] == []


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
def test_whoever_pickles_or_copies_a_key_pair_or_a_member_fails(act: Callable[[Any], Any]) -> None:
    game = Game(5).to_masked()
    actor = game.members[0]
    for one in actor._keys():
        with pytest.raises(TypeError, match="never pickled or copied"):
            act(one)
    if act is not copy.copy:
        with pytest.raises(TypeError):
            act(actor)


@pytest.mark.parametrize("end", ["release", "close", "excluded", "refused", "goodbye", "start"])
def test_whoever_reads_the_memory_of_a_device_after_its_attempt_finds_only_zeros(
    open_gateway: Callable[..., Gateway],
    derived: list[tuple[bytearray, bytes]],
    end: str,
) -> None:
    entropy = Remembered()
    gateway = open_gateway(6, entropy=entropy)
    play = Play(gateway, gateway.terms())
    if end == "release":
        play.to_releases()
    else:
        play.to_votes(lost=[5] if end == "excluded" else ())
        assert entropy.left() >= 5 * 3
        _end(play, end)
    assert entropy.left() == 0
    assert [1 for one, _ in derived if any(one)] == []


def _end(play: Play, end: str) -> None:
    """End the attempt on every device in one of the ways that there are."""
    gateway, ctx = play.gateway, play.server.ctx
    for index in range(6):
        if end == "close":
            play.ask({play.id(index): pb.ToClient(close=pb.Close())}, ctx)
        elif end == "excluded" and index < 5:
            play.ask({play.id(index): pb.ToClient(votes=pb.Votes())}, ctx)
        elif end == "excluded":
            out = pb.Survivors(u=b"\x1f")
            assert play.ask({play.id(index): pb.ToClient(survivors=out)}, ctx) == []
            assert index not in play.refusals
        elif end == "refused":
            play.ask({play.id(index): pb.ToClient(votes=pb.Votes())}, ctx)
            assert index in play.refusals
        elif end == "goodbye":
            gateway.ask(index, pb.ToClient(goodbye=pb.Goodbye()))
        else:
            gateway.start(index, pb.Start(model_digest=bytes(32), phase=pb.PHASE_TRAIN))


def test_whoever_makes_a_simulation_crash_gets_no_core_file(tmp_path: Path) -> None:
    """The command refuses a folder without an app, and has lowered the limit before that."""
    program = (
        "import resource, sys\n"
        "from umbel.cli import main\n"
        "try: main()\n"
        "finally: print(resource.getrlimit(resource.RLIMIT_CORE))\n"
    )
    command = [sys.executable, "-c", program, "simulate", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "pyproject.toml" in done.stderr
    assert done.stdout.splitlines()[-1] == "(0, 0)"


def test_whoever_gets_the_servers_disk_and_ledger_finds_no_share_seed_or_mask(
    tmp_path: Path, derived: list[tuple[bytearray, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rebuilt: list[tuple[Any, bytes]] = []
    combine = shamir.combine

    def remembered(*args: Any, **options: Any) -> Any:
        secrets = combine(*args, **options)
        rebuilt.append((secrets, secrets.tobytes()))
        return secrets

    monkeypatch.setattr(shamir, "combine", remembered)
    run = settings(rounds=2, final_evaluation=True)
    with Stage(tmp_path, 6, run, drops=[Drop("inbox", (5,), 1)], keeps=True) as stage:
        traffic: list[bytes] = []
        opened: dict[str, bytes] = {}

        def tap(_way: str, _node: str, data: bytes) -> None:
            traffic.append(data)
            for path in stage.directory.path.glob("rounds/*.open/*"):
                opened[str(path)] = path.read_bytes()

        stage.link.tap = tap
        stage.play()
        assert [r.outcome for r in stage.records] == ["finished"] * 3
    secrets = [bytes(one) for _, one in derived]
    secrets += [raw[at : at + 32] for _, raw in rebuilt for at in range(0, len(raw), 32)]
    assert len(rebuilt) == 4  # seeds in each round, and a mask key in the first
    hay = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len(opened) == 3 * 2  # what was there while each round was open
    hay += b"".join(opened.values())
    assert len(hay) > 10_000
    assert _found(secrets, hay) == []
    vectors = [data[64:96] for data in traffic if data[:4] == b"UMBF"]
    assert len(vectors) == 5 + 5 + 5
    assert _found(vectors, hay) == []
    assert not any(secrets.any() for secrets, _ in rebuilt)
    assert [1 for one, _ in derived if any(one)] == []


# ---- 14: one key, one stream ---------------------------------------------------------------------


def test_no_stream_key_comes_twice_in_three_rounds_with_evaluation_and_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A self mask's key occurs once, a pair's at its two ends in one attempt, and nowhere else."""
    covers: list[list[bytes]] = []
    rounding: list[bytes] = []

    def cover(buffer: Any, split: int, streams: Any) -> None:
        covers.append([bytes(key) for key, _ in streams])
        masks.apply(buffer, split, streams)

    def rounded(buffer: Any, key: Any) -> None:
        rounding.append(bytes(key))
        masks.write(buffer, key)

    sealed: list[bytes] = []
    seal = keys.seal

    def sealing(key: Any, **options: Any) -> bytes:
        sealed.append(bytes(key))
        return seal(key, **options)

    monkeypatch.setattr(member, "masks", SimpleNamespace(apply=cover))
    monkeypatch.setattr(layout, "masks", SimpleNamespace(write=rounded))
    monkeypatch.setattr(keys, "seal", sealing)
    run = settings(rounds=3, final_evaluation=True, attempts=2)
    with Stage(tmp_path, 5, run, drops=[Drop("inbox", (3, 4), 2)]) as stage:
        stage.play()
        outcomes = [(r.round, r.phase, r.attempt, r.outcome) for r in stage.records]
    assert outcomes == [
        (1, "train", 0, "finished"),
        (2, "train", 0, "aborted"),
        (2, "train", 1, "finished"),
        (3, "train", 0, "finished"),
        (3, "evaluate", 0, "finished"),
    ]
    sizes = [5, 5, 3, 3, 3]  # in the second two of five are lost before they mask
    assert [len(cover) for cover in covers] == [5] * 5 + [5] * 3 + [3] * 9
    own = [cover[0] for cover in covers]
    pairs = Counter(key for cover in covers for key in cover[1:])
    assert len(own) == len(set(own))
    assert len(pairs) == sum(n * (n - 1) // 2 for n in sizes) - 1
    assert Counter(pairs.values()) == {2: 10 + 3 + 3 * 3, 1: 6}
    assert len(sealed) == len(set(sealed)) == sum(n * (n - 1) for n in sizes)
    kinds = [set(own), set(pairs), set(sealed), set(rounding)]
    assert sum(map(len, kinds)) == len(set().union(*kinds))
    # Rounding follows from seed, round and client, so that a retry rounds alike; never shared.
    assert len(set(rounding)) == 5 + 3 + 3


def test_what_is_sent_again_is_byte_for_byte_what_was_sent(
    open_gateway: Callable[..., Gateway],
) -> None:
    """The vector is masked once and kept as it is until the attempt ends."""
    gateway = open_gateway()
    play = Play(gateway, gateway.terms()).keys().shares().masked()
    kept = gateway.uploads[0]
    before = bytes(kept.buffer)
    again = {play.id(0): pb.ToClient(inbox=pb.Inbox(u2=b"\x1f"))}
    play.votes().releases()
    assert bytes(kept.buffer) == before
    assert hashlib.sha256(before).digest() == play.server._headers[0].y_hash
    assert play.ask(again, play.server.ctx) == []
    assert gateway.uploads[0] is kept


# ---- 19: what travels in clear -------------------------------------------------------------------

RANDOM = {"mask_pk", "seal_pk", "signature", "commitment", "blob", "mask_share_hash"}
RANDOM |= {"seed_share_hash", "y_hash", "u_hash", "u2_hash", "shares", "ctx"}


def _shape(message: Any) -> object:
    """Return a message with each random field replaced by its length."""
    found: list[object] = []
    for field, value in message.ListFields():
        items = value if field.is_repeated else [value]
        if field.message_type is not None:
            found.append((field.name, [_shape(item) for item in items]))
        elif field.name in RANDOM:
            found.append((field.name, [len(item) for item in items]))
        else:
            found.append((field.name, list(items)))
    return found


class Heavy(Fixed):
    """The same task on devices with much more data, a far greater loss and other updates."""

    def train(self, *args: Any) -> TrainResult:
        """Return large numbers."""
        done = super().train(*args)
        deltas = {name: -delta / 3 for name, delta in done.deltas.items()}
        metrics = {"eval.examples": 2**30, "eval.loss": 2.0**30}
        return replace(done, deltas=deltas, weight=40, metrics=metrics)


def test_whoever_watches_the_wire_cannot_tell_the_weights_and_metrics_of_a_secure_run(
    tmp_path: Path,
) -> None:
    """Two runs that differ in weights, metrics and updates: all clear fields and lengths agree."""
    seen: list[list[object]] = []
    for trainer in (Fixed(), Heavy()):
        run = settings(rounds=2, final_evaluation=True)
        home = tmp_path / type(trainer).__name__
        with Stage(home, 5, run, trainer=trainer, drops=[Drop("keys", (4,), 2)]) as stage:
            shapes: list[object] = []

            def tap(way: str, node: str, data: bytes, shapes: list[object] = shapes) -> None:
                if way == "up" and data[:4] == b"UMBF":
                    shapes.append((node, data[:8], data[40:64], len(data)))
                elif way == "up":
                    shapes.append((node, len(data), _shape(pb.ToServer.FromString(data))))

            stage.link.tap = tap
            stage.play()
            assert stage.records[0].outcome == "finished"
            seen.append(shapes)
    assert len(seen[0]) > 50
    assert seen[0] == seen[1]


@pytest.mark.parametrize("weight", [1, 40])
def test_whoever_reads_a_masked_vector_finds_neither_weight_nor_metric(
    open_gateway: Callable[..., Gateway], weight: int
) -> None:
    gateway = open_gateway(trainer=Numbers(weight))
    Play(gateway, gateway.terms()).to_votes()
    split = gateway.updates[0].layout("train").split
    tail = np.frombuffer(bytes(gateway.uploads[0].buffer[split:]), "<u8")
    assert tail.size == 5
    assert (tail > 2**40).all()  # 1, w, saturated, metric, 1: noise but for odds of 2^-22
