"""An app for tests of the training group: its examples are made, and a rank fails on demand.

`site.config` says how many `rows` there are and `what` happens, on the rank `who` only where that
is given. In the processes of a group, object collectives raise: they would pickle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from umbel.strategies.task import Site

if TYPE_CHECKING:
    from pathlib import Path

NAME = "ddp_app_under_test"
CODE = """
import os, pathlib, resource, sys, time
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
import umbel

HERE = pathlib.Path(__file__).parent
FAIL = set()


def forbidden(*_, **__):
    raise RuntimeError("an object collective")


if sys.argv[0].endswith("torch_ddp_worker.py"):
    for module in (dist, dist.distributed_c10d):
        for name in dir(module):
            if "object" in name and callable(getattr(module, name)):
                setattr(module, name, forbidden)


def what_here(site):
    who = site.config.get("who")
    if who is None or (dist.is_initialized() and dist.get_rank() == who):
        return site.config.get("what")


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(2, 2)
        self.first = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Points(umbel.Task):
    optimizer = umbel.SGD(lr=0.05, momentum=0.9, weight_decay=0.01)

    @staticmethod
    def loss(model, batch):
        if "fit" in FAIL and model.training:
            raise ValueError("the secret of patient 7")
        return nn.functional.cross_entropy(model.first(batch[0]), batch[1])

    def model(self):
        return Two()

    def train_data(self, site):
        what = what_here(site)
        FAIL.clear()
        FAIL.add(what)
        if what == "fork" and os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        if what in ("sleep", "fork"):
            (HERE / f"asleep-{os.getpid()}").touch()
            time.sleep(600)
        if what == "raise":
            raise ValueError("the secret of patient 7")
        if what == "exit":
            sys.exit(3)
        if what == "limits":
            assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
            assert torch.get_num_threads() == 1
            assert os.environ["OMP_NUM_THREADS"] == "1"
            assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == "lo"
            assert dist.get_backend() == "gloo"
        rows = int(site.config.get("rows", 45)) + (what == "uneven")
        rng = np.random.default_rng([5, rows])
        labels = rng.integers(3, size=rows)
        inputs = (rng.normal(size=(rows, 4)) + labels[:, None]).astype(np.float32)
        if what == "nan":
            inputs[-1] = np.nan
        return torch.from_numpy(inputs), torch.from_numpy(labels)


class Normed(Points):
    loss = "cross_entropy"

    def model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))


class Plain(umbel.Task):
    def model(self):
        return umbel.MLP(4, 3)
"""


def site(what: str = "", who: int | None = None, rows: int = 45) -> Site:
    """Return a site of the app."""
    config: dict[str, bool | int | float | str] = {"what": what, "rows": rows}
    return Site(0, 1, config if who is None else config | {"who": who})


def write(folder: Path) -> Path:
    """Write the app's module into a directory and return it."""
    (folder / f"{NAME}.py").write_text(CODE)
    return folder
