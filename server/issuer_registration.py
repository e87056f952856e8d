"""Nodes at the SuperLink: registered when they enrol, forgotten when they are removed.

The database says who is a member; the SuperLink is brought to it, at once where it answers and at
the issuer's next refresh where it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import issuer_books as books
from .issuer_store import locked, transaction
from ..protocol.enrolment import Declined
from ..protocol.errors import SettingsError, UmbelError

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from .registrar import Registrar


class Registration:
    """What one federation's SuperLink is told."""

    def __init__(self, folder: Path, registrar: Registrar) -> None:
        """Take the federation's directory, and the SuperLink."""
        self._folder, self._registrar = folder, registrar

    def register(self, row: sqlite3.Row) -> None:
        """Register a node's Flower key; of one that was removed meanwhile, take it back.

        Raises:
            Declined: The node was removed, or the SuperLink does not take its key.
            StateError: The SuperLink does not answer.
        """
        try:
            flower_node = self._registrar.register(row["flower_key"], row["name"])
        except SettingsError as error:
            line = "the SuperLink does not take this node's Flower key; enrol anew, with new keys"
            raise Declined("other keys", line) from error
        with locked(self._folder), transaction(self._folder) as db:
            kept = books.set_flower_node(db, row["id"], flower_node)
        if not kept:
            self._registrar.unregister(flower_node)
            raise Declined("removed")

    def forget(self) -> None:
        """Let the SuperLink forget the nodes that were removed.

        Raises:
            StateError: The SuperLink does not answer.
        """
        with locked(self._folder), transaction(self._folder) as db:
            rows = books.forgotten(db)
        for row in rows:
            self._registrar.unregister(int(row["flower_node"]))
            with locked(self._folder), transaction(self._folder) as db:
                books.set_flower_node(db, row["id"], None)

    def reconcile(self) -> list[str]:
        """Bring the SuperLink's list to ours: it may have lost its database, or been away.

        Returns:
            Lines about what could not be.
        """
        said = []
        try:
            self.forget()
            known = self._registrar.registered()
            with locked(self._folder), transaction(self._folder) as db:
                rows = books.live(db)
            for row in rows:
                if str(known.get(row["flower_key"])) != row["flower_node"]:
                    said += self._again(row)
        except UmbelError as error:
            said.append(f"the SuperLink's list of nodes is not up to date: {error}")
        return said

    def _again(self, row: sqlite3.Row) -> list[str]:
        """Register a node that the SuperLink does not know; one that it refuses stops no other."""
        try:
            self.register(row)
        except Declined as declined:
            return [f"{row['name']}: {declined.line}"]
        return []
