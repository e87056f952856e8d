"""The peer of `umbel bench ingest`: Flower 1.42's push of objects from a SuperNode to a SuperLink.

The other process is its SuperLink's own app: route, middleware, node authentication and in-memory
store behind one uvicorn worker. This one is its SuperNode's client, with as many concurrent pushes
as it has. Objects are made before; what follows the push (pull, inflate) is left out. No access
log, in its favour.
"""

from __future__ import annotations

import asyncio
import threading
import time
from importlib.metadata import version
from typing import Any

import uvicorn
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import NOOP_FLWR_AID
from flwr.proto.fleet_pb2 import ActivateNodeRequest, RegisterNodeFleetRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import push_object_contents_from_iterable
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from .ingest_process import HOST, Certificates, Other, answering
from .tcp_ingest import files

NAME = f"flwr {version('flwr')} HTTP push"
OBJECT = 5 << 20
"""Bytes of a chunk of an array."""
_HEARTBEAT = 300.0


class SuperLink:
    """The other process."""

    def __init__(self) -> None:
        """Make the app; it listens when it is asked to."""
        self._app = create_app()
        self._state = self._app.state.linkstate_factory.state()
        self._run = 0

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Listen, or begin a push of the named objects in a new run."""
        if "objects" in asked:
            return self._begin(asked["objects"])
        with files(asked["chain"], asked["key"]) as (chain, key):
            tls = bool(asked["key"])
            config = uvicorn.Config(
                self._app,
                HOST,
                port=0,
                access_log=False,
                log_level="error",
                ssl_certfile=str(chain) if tls else None,
                ssl_keyfile=str(key) if tls else None,
            )
            config.load()
        server = uvicorn.Server(config)
        threading.Thread(target=asyncio.run, args=(server.serve(),), daemon=True).start()
        while not server.started:
            time.sleep(0.01)
        return {"port": server.servers[0].sockets[0].getsockname()[1]}

    def _begin(self, objects: list[str]) -> dict[str, Any]:
        """Forget the last push and expect the next."""
        state = self._state
        if self._run:
            state.object_store.delete_objects_in_run(self._run)
        self._run = state.create_run(
            "bench/bench", "1.0.0", "", {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID,
            TaskType.SERVER_APP,
        )  # fmt: skip
        task = state.run_ids[self._run].run.primary_task_id
        state.claim_task(task)
        state.activate_task(task)
        session = state.start_session(self._run)
        tree = ObjectTree(
            object_id=objects[0], children=[ObjectTree(object_id=one) for one in objects[1:]]
        )
        missing = state.preregister_object_tree(tree, session)
        return {"run": str(self._run), "session": session, "missing": len(missing)}


class SuperNode:
    """This process's end."""

    def __init__(self, link: Other, papers: Certificates | None, payload: bytes) -> None:
        """Connect, register, and make the objects; with certificates over TLS."""
        self._link = link
        key, chain = papers.server if papers else ("", "")
        port = link.ask(key=key, chain=chain)["port"]
        keys = generate_key_pairs()
        self._client = FleetHttpClient.from_server_address(
            f"{HOST}:{port}",
            papers is None,
            papers.root.encode() if papers else None,
            [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(*keys)],
        )
        public = public_key_to_bytes(keys[1])
        self._client.RegisterNode(RegisterNodeFleetRequest(public_key=public))
        request = ActivateNodeRequest(public_key=public, heartbeat_interval=_HEARTBEAT)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        view = memoryview(payload)
        chunks = [ArrayChunk(view[at : at + OBJECT]) for at in range(0, len(view), OBJECT)]
        self._objects = [(chunk.object_id, chunk.deflate()) for chunk in chunks]

    def seconds(self) -> float:
        """Return how long it takes to push all objects."""
        begun = self._link.ask(objects=[name for name, _ in self._objects])
        if begun["missing"] != len(self._objects):
            raise RuntimeError(f"flower expects {begun['missing']} of {len(self._objects)}")
        push = make_push_object_fn_protobuf(
            self._client.PushObject, self._node, int(begun["run"]), begun["session"]
        )
        start = time.perf_counter()
        push_object_contents_from_iterable(self._objects, push)
        return time.perf_counter() - start

    def close(self) -> None:
        """Hang up."""
        self._client.close()


if __name__ == "__main__":
    answering(SuperLink().answer)
