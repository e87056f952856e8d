"""Flower's Control API from one process: build a bundle, register nodes, start and follow a run.

What the commands `flwr supernode register`, `flwr run` and `flwr list` do, without 0.75 s of
interpreter and imports for each call. The names used here are no public interface of flwr (tried
with 1.42), so that they stand in this file only.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, Self

import click
import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from ..protocol.errors import SettingsError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from flwr.proto.node_pb2 import NodeInfo

ONLINE, UNREGISTERED = "online", "unregistered"


class NodeState(NamedTuple):
    """A registered SuperNode as the SuperLink sees it."""

    node_id: int
    status: str
    """`registered`, `online`, `offline` or `unregistered`."""


class NodeTimes(NamedTuple):
    """A SuperNode's state, and since when."""

    node_id: int
    status: str
    """`registered` (and never here), `online`, `offline` or `unregistered`."""
    until: float
    """Seconds since 1970: while it is online, how long it counts as that without another sign; of
    one that is offline when it left, and 0 for never."""


class RunState(NamedTuple):
    """A Flower run as the SuperLink sees it."""

    status: str
    """`pending`, `starting`, `running` or `finished`."""
    outcome: str
    """`completed`, `failed` or `stopped` of a finished run."""
    details: str

    @property
    def over(self) -> bool:
        """Whether nothing will come of it any more."""
        return self.status == "finished"


class Control:
    """A connection with one SuperLink's Control API."""

    def __init__(self, address: str, ca: Path) -> None:
        """Connect when first used.

        Args:
            address: `host:port` of the SuperLink.
            ca: The root that its certificate chains to.
        """
        self._address, self._ca = address, ca
        self._client = ControlHttpClient.from_server_address(
            server_address=address,
            insecure=False,
            root_certificates=ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )

    def __enter__(self) -> Self:
        """Return this connection."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def healthy(self) -> bool:
        """Tell whether the SuperLink answers."""
        return answers(self._address, self._ca, "/health")

    def register(self, public_key: bytes, name: str) -> int:
        """Register a SuperNode's public key (PEM) and return Flower's id of it."""
        with self._translated(f"registration of {name}"):
            request = RegisterNodeRequest(public_key=public_key, name=name)
            return self._client.RegisterNode(request).node_id

    def unregister(self, node_id: int) -> None:
        """Let the SuperLink forget a SuperNode; its key may not come again."""
        with self._translated(f"removal of node {node_id}"):
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node_id))

    def nodes(self) -> dict[str, NodeState]:
        """Return the registered SuperNodes by name; of one name, the last one registered."""
        return {node.name: NodeState(node.node_id, node.status) for node in self._listed()}

    def keys(self) -> dict[bytes, int]:
        """Return the public keys (PEM) of the registered SuperNodes, with their ids."""
        return {node.public_key: node.node_id for node in self._listed()}

    def _listed(self) -> list[NodeInfo]:
        with self._translated("list of nodes"):
            found = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [node for node in found if node.status != UNREGISTERED]

    def times(self) -> dict[bytes, NodeTimes]:
        """Return the registered SuperNodes by their public keys (PEM)."""
        return {
            node.public_key: NodeTimes(node.node_id, node.status, node.online_until)
            for node in self._listed()
        }

    def start_run(self, bundle: bytes, digest: str, config: Mapping[str, object]) -> int:
        """Submit a bundle, as `flwr run` does, and return the id of Flower's run.

        Args:
            bundle: The app bundle.
            digest: Its SHA-256, hex.
            config: Overrides of the app's run-config.

        Raises:
            SettingsError: The app or a setting is not accepted.
        """
        request = StartRunRequest(
            fab=Fab(hash_str=digest, content=bundle),
            override_config=user_config_to_proto(dict(config)),  # type: ignore[arg-type]
        )
        with self._translated("run"):
            answer = self._client.StartRun(request)
        if not answer.HasField("run_id"):
            raise SettingsError("app", "a bundle that the SuperLink takes", "refused, see its log")
        return answer.run_id

    def run(self, run_id: int) -> RunState:
        """Return what became of a run."""
        with self._translated(f"run {run_id}"):
            found = self._client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
        return RunState(found.status, found.sub_status, found.details)

    def runs(self) -> dict[int, RunState]:
        """Return what became of the newest runs, twenty at most."""
        with self._translated("list of runs"):
            found = self._client.ListRuns(ListRunsRequest()).run_dict
        states = ((run_id, run.status) for run_id, run in found.items())
        return {run_id: RunState(s.status, s.sub_status, s.details) for run_id, s in states}

    def stop_run(self, run_id: int) -> None:
        """Stop a run."""
        with self._translated(f"run {run_id}"):
            self._client.StopRun(StopRunRequest(run_id=run_id))

    def output(self, run_id: int) -> Iterator[str]:
        """Yield what the ServerApp prints, piece by piece, until its run is over."""
        for piece, _ in self.output_after(run_id, 0.0):
            yield piece

    def output_after(self, run_id: int, after: float) -> Iterator[tuple[str, float]]:
        """Yield the same, each piece with its time, from after the time of one on."""
        with self._translated(f"output of run {run_id}"):
            request = StreamLogsRequest(run_id=run_id, after_timestamp=after)
            for answer in self._client.StreamLogs(request):
                yield answer.log_output, answer.latest_timestamp

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn Flower's errors into one line."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            found = FlowerError.from_json(error.response.text)
            said = str(found) if found else error.response.text[:200] or str(error)
            raise SettingsError(what, "what the SuperLink accepts", said) from error
        except httpx.HTTPError as error:
            raise StateError(
                f"SuperLink {self._address}", "an answer", str(error) or type(error).__name__,
                "see its log; `umbel up` starts another",
            ) from error  # fmt: skip


def answers(address: str, ca: Path, page: str) -> bool:
    """Tell whether a server of this machine says on a page that all is well.

    Args:
        address: `host:port` on which it listens.
        ca: The root that its certificate chains to.
        page: The page's path.
    """
    context = ssl.create_default_context(cafile=ca)
    try:
        # Whatever it listens on, its certificate bears this name.
        own = {"sni_hostname": "localhost"}
        with httpx.Client(verify=context, trust_env=False, timeout=5.0) as client:
            answer = client.get(f"https://{address}{page}", extensions=own)
    except httpx.TransportError:
        return False
    return answer.is_success


def build_bundle(app: Path) -> bytes:
    """Return the bundle of an app, the bytes that `flwr run` would submit.

    Raises:
        SettingsError: It is no Flower app.
    """
    try:
        return build_fab_from_disk(app)
    except (ValueError, KeyError, OSError, click.ClickException) as error:
        said = " ".join(str(error).split())
        raise SettingsError(f"app {app}", "a Flower app that can be bundled", said) from error


def same_bundle(app: Path, digest: str) -> bytes:
    """Return the bundle of an app that a run began with: devices and rounds are bound to it.

    Args:
        app: Its directory.
        digest: The bundle's SHA-256, hex.

    Raises:
        SettingsError: It is no Flower app.
        StateError: It is another one.
    """
    bundle = build_bundle(app)
    found = sha256(bundle).hexdigest()
    if found != digest:
        raise StateError(
            f"app {app}", f"the bundle {digest[:16]} that the run began with", found[:16],
            "restore the app, or start a new run of it with --init and the model so far",
        )  # fmt: skip
    return bundle
