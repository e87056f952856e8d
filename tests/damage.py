"""Small runs on the disk, and what can become of a round of theirs."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import numpy as np

from umbel.protocol.digest import model_digest
from umbel.protocol.manifest import Manifest
from umbel.server.ledger import RoundRecord
from umbel.server.round_folder import MODEL_FILE
from umbel.server.run_directory import RunDirectory

if TYPE_CHECKING:
    from pathlib import Path

RUN = "digits-1"


def model(
    n: int, shape: tuple[int, ...] = (4,)
) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return {"w": np.full(shape, n, np.float32)}


def digest(n: int) -> str:
    return model_digest(Manifest.of(model(n)).pack(model(n))).hex()


def finish(
    run: RunDirectory, n: int, value: int | None = None, shape: tuple[int, ...] = (4,)
) -> None:
    """Write and commit round `n`, whose model is filled with `value`."""
    arrays = model(n if value is None else value, shape)
    manifest = Manifest.of(arrays)
    found = model_digest(manifest.pack(arrays))
    run.write_round(n, arrays, manifest, found, {})
    if n:
        run.ledger.commit_round(
            RoundRecord(round=n, attempt=0, phase="train", outcome="finished", model=found.hex())
        )


def made(home: Path, rounds: int = 3, run: str = RUN, value: int | None = None) -> Path:
    """Make a run whose rounds 0 to `rounds` have finished; return its directory."""
    with RunDirectory.create(home, run) as directory:
        directory.ledger.create_run(run, "2026-01-01T00:00:00Z", {}, "off")
        for n in range(rounds + 1):
            finish(directory, n, value)
            directory.prune(None)
    return directory.path


def flip(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _cut(folder: Path) -> None:
    os.truncate(folder / MODEL_FILE, (folder / MODEL_FILE).stat().st_size - 5)


def _cut_to_nothing(folder: Path) -> None:
    os.truncate(folder / MODEL_FILE, 0)


def _flip_model(folder: Path) -> None:
    flip(folder / MODEL_FILE)


def _flip_header(folder: Path) -> None:
    flip(folder / MODEL_FILE, 20)


def _flip_manifest(folder: Path) -> None:
    flip(folder / "manifest.json", 30)


def _no_model(folder: Path) -> None:
    (folder / MODEL_FILE).unlink()


def _no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def _nothing(folder: Path) -> None:
    shutil.rmtree(folder)


def _a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def _a_link(folder: Path) -> None:
    """A link to a copy that is right in every byte."""
    copy = folder.parent.parent / "copy"
    folder.rename(copy)
    folder.symlink_to(copy)


def _a_linked_model(folder: Path) -> None:
    copy = folder.parent.parent / "copy"
    (folder / MODEL_FILE).rename(copy)
    (folder / MODEL_FILE).symlink_to(copy)


def _a_dangling_link(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to(folder.parent / "nowhere")


def _pipes(folder: Path) -> None:
    for name in (MODEL_FILE, "manifest.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)


def _a_piped_model(folder: Path) -> None:
    (folder / MODEL_FILE).unlink()
    os.mkfifo(folder / MODEL_FILE)


def _folders(folder: Path) -> None:
    (folder / MODEL_FILE).unlink()
    (folder / MODEL_FILE).mkdir()


def _huge(folder: Path) -> None:
    """A sparse file of a terabyte: whoever reads it whole is killed."""
    os.truncate(folder / MODEL_FILE, 1 << 40)


def _a_huge_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 1 << 40)


def _a_huge_header(folder: Path) -> None:
    with open(folder / MODEL_FILE, "r+b") as file:
        file.write(b"\xff" * 8)


def _another_round(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("000002"), folder)


def _another_run(folder: Path) -> None:
    other = made(folder.parents[2] / "elsewhere", run="other")
    shutil.rmtree(folder)
    shutil.copytree(other / "rounds" / "000003", folder)


def _the_same_name_elsewhere(folder: Path) -> None:
    """Right run, right round, right shapes, its own hashes: the ledger alone can tell."""
    other = made(folder.parents[2] / "elsewhere", value=7)
    shutil.rmtree(folder)
    shutil.copytree(other / "rounds" / "000003", folder)


def _another_shape(folder: Path) -> None:
    with RunDirectory.create(folder.parents[2] / "elsewhere", RUN) as other:
        finish(other, 3, shape=(2, 3))
    shutil.rmtree(folder)
    shutil.copytree(other.round_path(3), folder)


DAMAGE = [
    *(_cut, _cut_to_nothing, _flip_model, _flip_header, _flip_manifest, _no_model, _no_manifest),
    *(_nothing, _a_file, _a_link, _a_linked_model, _a_dangling_link, _pipes, _a_piped_model),
    *(_folders, _huge, _a_huge_manifest, _a_huge_header, _another_round, _another_run),
    *(_the_same_name_elsewhere, _another_shape),
]
