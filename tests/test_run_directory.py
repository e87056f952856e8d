"""The directory of a run: whole or not at all, hashed again at reading, kept by the rule."""

import hashlib
import json
import math
import multiprocessing
import os
import shutil
import stat
import tracemalloc
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from umbel.protocol.digest import model_digest
from umbel.protocol.errors import BadUpdate, StateError
from umbel.protocol.manifest import Manifest
from umbel.server.ledger import RoundRecord
from umbel.server.round_folder import MODEL_FILE
from umbel.server.run_directory import RunDirectory, list_runs, sweep

Arrays = dict[str, NDArray[np.generic]]
MODEL: Arrays = {
    "conv.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "scale": np.array(3.25),
    "empty": np.zeros((0, 4), np.float16),
    "num_batches_tracked": np.array(7),
    "mask": np.array([True, False]),
}


def write(run: RunDirectory, n: int, arrays: Arrays = MODEL) -> Path:
    manifest = Manifest.of(arrays)
    return run.write_round(n, arrays, manifest, model_digest(manifest.pack(arrays)), {"n": n})


def commit(run: RunDirectory, n: int, outcome: str = "finished", phase: str = "train") -> None:
    model = run.digest(n).hex() if run.round_path(n).exists() else ""
    run.ledger.commit_round(
        RoundRecord(round=n, attempt=0, phase=phase, outcome=outcome, model=model)
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path, "digits-1") as made:
        made.ledger.create_run("digits-1", "2026-01-01T00:00:00Z", {}, "off")
        yield made


def test_arrays_of_every_kind_come_back(run: RunDirectory) -> None:
    path = write(run, 12)
    assert path == run.path / "rounds" / "000012"
    assert sorted(p.name for p in path.iterdir()) == [MODEL_FILE, "manifest.json"]
    back = run.read_round(12)
    assert list(back) == list(MODEL)
    for name, array in MODEL.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()
    assert run.stored_extra(12) == {"n": 12}
    assert run.digest(12) == model_digest(Manifest.of(MODEL).pack(MODEL))


def test_the_model_opens_with_safetensors_alone(run: RunDirectory) -> None:
    path = write(run, 0) / MODEL_FILE
    assert safetensors.numpy.load_file(path)["conv.weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == {
            "run": "digits-1",
            "round": "0",
            "digest": run.digest(0).hex(),
        }


def test_memory_order_does_not_matter(run: RunDirectory) -> None:
    values = np.arange(12, dtype=np.float64).reshape(3, 4)
    write(run, 1, {"w": np.asfortranarray(values), "v": values[:, ::2]})
    back = run.read_round(1)
    assert back["w"].tolist() == values.tolist()
    assert back["v"].tolist() == values[:, ::2].tolist()


def test_only_the_ledger_and_the_rounds_and_private(run: RunDirectory) -> None:
    write(run, 0)
    names = {p.name for p in run.path.iterdir()}
    assert names - {"ledger.sqlite-wal", "ledger.sqlite-shm"} == {"ledger.sqlite", "rounds"}
    for path in (run.path, run.path / "rounds", run.path / "rounds" / "000000"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def _flip(offset: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)

    return damage


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _other_model(path: Path) -> None:
    safetensors.numpy.save_file({"w": np.zeros(3)}, path)


def _text(path: Path) -> None:
    path.write_text("not a model, and not a manifest either")


@pytest.mark.parametrize("name", [MODEL_FILE, "manifest.json"])
@pytest.mark.parametrize(
    "damage",
    [_flip(-3), _flip(40), _cut, _other_model, _text, Path.unlink, lambda p: p.write_bytes(b"")],
)
def test_damage_is_named(run: RunDirectory, name: str, damage: Callable[[Path], None]) -> None:
    path = write(run, 3) / name
    damage(path)
    with pytest.raises(StateError, match=rf"000003/{name}: expected .*; resume from an earlier"):
        run.read_round(3)


def test_every_single_byte_of_the_files_is_covered(run: RunDirectory) -> None:
    folder = write(run, 3, {"w": np.array([1.0, 2.0], np.float32)})
    for path in (folder / MODEL_FILE, folder / "manifest.json"):
        data = path.read_bytes()
        for offset in range(len(data)):
            _flip(offset)(path)
            with pytest.raises(StateError):
                run.read_round(3)
        path.write_bytes(data)
    assert run.read_round(3)["w"].tolist() == [1.0, 2.0]


def test_a_damaged_length_takes_no_memory(run: RunDirectory) -> None:
    path = write(run, 3) / MODEL_FILE
    data = path.read_bytes()
    for announced in (1 << 26, 99_000_000, 1 << 62):
        path.write_bytes(announced.to_bytes(8, "little") + data[8:])
        tracemalloc.start()
        with pytest.raises(StateError, match=f"a header of {announced} bytes in a file of"):
            run.read_round(3)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20


def test_a_number_that_is_none_is_no_row_of_the_ledger(run: RunDirectory) -> None:
    """JSON knows 1e999; a text with its own right hash may say it."""
    path = write(run, 3) / "manifest.json"
    body, _ = json.loads(path.read_bytes())
    body["ledger"][0] = math.inf
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    path.write_text(f'[{text},"{hashlib.sha256(text.encode()).hexdigest()}"]\n')
    with pytest.raises(StateError, match="expected the manifest of round 3"):
        run.read_round(3)


def test_another_rounds_folder_is_no_substitute(run: RunDirectory) -> None:
    write(run, 1)
    shutil.copytree(run.round_path(1), run.round_path(2))
    with pytest.raises(StateError, match=r"expected the manifest of round 2 .*got .*of round 1 of"):
        run.read_round(2)


def test_a_full_disk_is_said_with_both_numbers(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 4096, 4096))
    with pytest.raises(StateError, match=r"expected \d+ bytes free for this round, got 4096 bytes"):
        write(run, 1)
    assert run.kept() == ()


def test_a_failed_write_leaves_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StateError, match="No space left on device; free the disk"):
        write(run, 1)
    assert list((run.path / "rounds").iterdir()) == []


def test_files_reach_the_disk_before_the_rename(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def logged_fsync(descriptor: int) -> None:
        log.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def logged_rename(path: Path, target: Path) -> Path:
        log.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(Path, "rename", logged_rename)
    write(run, 5)
    hidden = f".000005.{os.getpid()}"
    assert sorted(log[:3]) == [hidden, MODEL_FILE, "manifest.json"]  # at once, in any order
    assert log[3:] == ["rename", "rounds"]


def test_latest_is_what_the_ledger_finished(run: RunDirectory) -> None:
    assert run.latest() is None
    write(run, 0)
    assert run.latest() == 0
    write(run, 1)
    assert run.latest() == 0
    commit(run, 1)
    assert run.latest() == 1
    commit(run, 2, outcome="void")
    commit(run, 3, phase="evaluate")
    assert run.latest() == 1


def test_a_committed_round_is_never_overwritten(run: RunDirectory) -> None:
    write(run, 1)
    write(run, 1, {"w": np.ones(2)})
    assert run.read_round(1)["w"].tolist() == [1, 1]
    commit(run, 1)
    with pytest.raises(StateError, match="expected a round not written yet"):
        write(run, 1)


def test_resume_drops_what_was_not_committed(tmp_path: Path, run: RunDirectory) -> None:
    for n in range(3):
        write(run, n)
    commit(run, 1)
    leftover = run.path / "rounds" / ".000003.4711"
    leftover.mkdir()
    (leftover / MODEL_FILE).write_bytes(b"half")
    assert run.kept() == (0, 1, 2)
    run.close()
    with RunDirectory.resume(tmp_path, "digits-1") as again:
        assert again.kept() == (0, 1)
        assert again.latest() == 1
        assert not leftover.exists()
        write(again, 2)


def _write_and_die(root: Path, at: str) -> None:
    """End the process at the named call inside write_round: no handler runs."""
    run = RunDirectory.resume(root, "digits-1")

    def die(*_: object, **__: object) -> None:
        os._exit(9)

    if at == "rename":
        Path.rename = die  # type: ignore[method-assign,assignment]
    else:
        os.fsync = die
    write(run, 2)


@pytest.mark.parametrize("at", ["fsync", "rename"])
def test_a_crash_in_the_middle_costs_the_open_round_only(
    tmp_path: Path, run: RunDirectory, at: str
) -> None:
    write(run, 1)
    commit(run, 1)
    run.close()
    child = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(tmp_path, at))
    child.start()
    child.join()
    assert child.exitcode == 9
    with RunDirectory.open(tmp_path, "digits-1") as reader:
        assert reader.kept() == (1,)
    with RunDirectory.resume(tmp_path, "digits-1") as again:
        assert [p.name for p in (again.path / "rounds").iterdir()] == ["000001"]
        assert again.read_round(1)["scale"] == 3.25


def test_one_process_writes(tmp_path: Path, run: RunDirectory) -> None:
    with pytest.raises(StateError, match="another process holds it"):
        RunDirectory.resume(tmp_path, "digits-1")
    with RunDirectory.open(tmp_path, "digits-1") as reader:
        assert reader.ledger.run().run == "digits-1"
    run.close()
    RunDirectory.resume(tmp_path, "digits-1").close()


def test_resume_refuses_a_changed_ledger(tmp_path: Path, run: RunDirectory) -> None:
    run.ledger._db.execute("UPDATE run SET security = 'on'")
    run.close()
    with pytest.raises(StateError, match="row 1 as it was written"):
        RunDirectory.resume(tmp_path, "digits-1")
    with pytest.raises(StateError, match="row 1 as it was written"):
        RunDirectory.resume(tmp_path, "digits-1")  # the lock was given back


@pytest.mark.parametrize(
    ("rounds", "best", "left"),
    [
        (7, None, (5, 6, 7)),
        (7, 2, (2, 5, 6, 7)),
        (7, 6, (5, 6, 7)),
        (2, 0, (0, 1, 2)),
    ],
)
def test_the_rule_of_what_is_kept(
    run: RunDirectory, rounds: int, best: int | None, left: tuple[int, ...]
) -> None:
    for n in range(rounds + 1):
        write(run, n)
        if n:
            commit(run, n)
    gone = run.prune(best)
    assert run.kept() == left
    assert sorted((*gone, *left)) == list(range(rounds + 1))
    assert run.prune(best) == ()


def test_the_newest_committed_round_is_kept_however_old(run: RunDirectory) -> None:
    for n in range(8):
        write(run, n)
        if n in (1, 2):
            commit(run, n)
    assert run.prune(None) == (0, 1)
    assert run.latest() == 2


def test_rounds_that_are_still_read_stay(run: RunDirectory) -> None:
    for n in range(8):
        write(run, n)
        if n:
            commit(run, n)
    assert run.prune(1, 3, 7, 99) == (0, 2, 4)
    assert run.prune(1) == (3,)


def test_a_model_is_read_into_one_copy(run: RunDirectory) -> None:
    arrays: Arrays = {name: np.full(1 << 20, 7, np.float32) for name in "abc"}
    arrays["n"] = np.array([3])
    manifest = Manifest.of(arrays)
    run.write_round(0, arrays, manifest, model_digest(manifest.pack(arrays)), {})
    tracemalloc.start()
    try:
        found = run.read_round(0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all((found[name] == array).all() for name, array in arrays.items())
    assert peak < 1.1 * manifest.total_bytes


def test_runs_are_listed(tmp_path: Path, run: RunDirectory) -> None:
    RunDirectory.create(tmp_path, "a-run").close()
    (tmp_path / "runs" / "no-run").mkdir()
    assert run.path.is_dir()
    assert list_runs(tmp_path) == ("a-run", "digits-1")
    assert list_runs(tmp_path / "nowhere") == ()


def test_arrays_of_another_manifest_are_refused_before_anything_is_written(
    run: RunDirectory,
) -> None:
    manifest = Manifest.of(MODEL)
    with pytest.raises(BadUpdate):
        run.write_round(1, {"w": np.zeros(2)}, manifest, bytes(32), {})
    assert run.kept() == ()


def test_the_manifest_is_json_that_people_can_read(run: RunDirectory) -> None:
    body, _ = json.loads((write(run, 1) / "manifest.json").read_text())
    assert body["format"] == "umbel/round/1"
    assert body["manifest"]["arrays"][0] == {
        "name": "conv.weight",
        "shape": [2, 3],
        "dtype": "float32",
    }


def test_sweeping_takes_what_a_killed_writer_left_and_nothing_else(
    tmp_path: Path, run: RunDirectory
) -> None:
    write(run, 0)
    (run.path / "rounds" / ".000001.9").mkdir()
    (run.path / "rounds" / ".000001.9" / MODEL_FILE).write_bytes(b"half")
    assert sweep(tmp_path) == ()  # it is being written
    run.close()
    assert sweep(tmp_path) == ("digits-1",)
    assert [folder.name for folder in (run.path / "rounds").iterdir()] == ["000000"]
    assert sweep(tmp_path) == ()
