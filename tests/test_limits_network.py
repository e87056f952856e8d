"""A policy's limits in a session with a real gateway: it ends between rounds, with a code."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from umbel.clients import limits
from umbel.clients.usage import FILE
from umbel.protocol import messages_pb2 as pb
from umbel.protocol.errors import Refused
from umbel.tests.federations import DeviceThread, Run, addressed, core, made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from umbel.simulation.dev_federation import DevFederation


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevFederation]:
    """A core service and four devices: one may leave, and three are a cohort."""
    found = made(tmp_path_factory.mktemp("federation"), 4)
    with core(found) as port:
        addressed(found, f"127.0.0.1:{port}")
        yield found


@pytest.fixture
def run(federation: DevFederation, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A run of three rounds."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")
    opened = Run(federation, tmp_path, name[:60], rounds=3, final_evaluation=False)
    yield opened
    opened.close()


def bounded(device: DeviceThread, **policy: Any) -> DeviceThread:
    """Put keys into a device's policy."""
    device.files = replace(device.files, policy=replace(device.files.policy, **policy))
    return device


def played(run: Run, devices: list[DeviceThread], after_first: Callable[[], None]) -> list[int]:
    """Play the run; something happens when its first round is over. Returns survivors a round."""
    for index, device in enumerate(devices):
        device.start(run.name, run.ticket(index))
    run.joined(len(devices))
    run.coordinator.begin(time.monotonic())
    run.pump(lambda: bool(run.records))
    after_first()
    run.pump(lambda: run.coordinator.done)
    run.core.goodbye()
    for device in devices:
        device.join()
    return [len(record.survivors) for record in run.records if record.outcome == "finished"]


def test_a_device_whose_bytes_are_used_up_leaves_between_rounds_and_stays_away(run: Run) -> None:
    devices = run.devices()
    bounded(devices[0], bytes_per_day=4000)
    survivors = played(run, devices, lambda: None)
    assert survivors[0] == 4  # its round was not broken off
    assert set(survivors[1:]) == {3}
    left = devices[0].outcome
    assert left is not None
    assert (left.reason, left.rounds) == (pb.REASON_LIMITS, 1)
    assert "limits.bytes_per_day is 4000" in left.detail
    kept = json.loads((devices[0].files.directory / FILE).read_text())
    assert sum(row[0] for row in kept["hours"].values()) == left.bytes_up + left.bytes_down
    again = bounded(run.devices()[0], bytes_per_day=4000)  # another process, the same day
    with pytest.raises(Refused, match=r"limits\.bytes_per_day is 4000"):
        limits.limits_of(again.files).check()


@pytest.mark.slow
def test_a_device_whose_hours_end_leaves_between_rounds(run: Run) -> None:
    late = timedelta(0)
    begin, end = (datetime.now().astimezone() + timedelta(minutes=m) for m in (-60, 60))
    devices = run.devices()
    bounded(devices[1], hours=(f"{begin:%H:%M}-{end:%H:%M}",))
    devices[1].files = replace(devices[1].files, clock=lambda: datetime.now(UTC) + late)

    def pass_hours() -> None:
        nonlocal late
        late = timedelta(hours=2)

    survivors = played(run, devices, pass_hours)
    assert survivors[0] == 4
    assert survivors[-1] == 3
    assert devices[1].outcome is not None
    assert devices[1].outcome.reason == pb.REASON_LIMITS
    assert "limits.hours is" in devices[1].outcome.detail


@pytest.mark.slow
def test_a_device_that_is_needed_elsewhere_leaves_between_rounds(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ASK_S", 0.0)
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\nexec test ! -e {tmp_path}/busy\n")
    hook.chmod(0o755)
    devices = run.devices()
    bounded(devices[2], ready_hook=(str(hook),))
    survivors = played(run, devices, (tmp_path / "busy").touch)
    assert survivors[0] == 4
    assert survivors[-1] == 3
    assert devices[2].outcome is not None
    assert devices[2].outcome.reason == pb.REASON_LIMITS
    assert "limits.ready_hook says no" in devices[2].outcome.detail


def test_on_a_metered_link_a_device_without_bytes_for_it_does_not_join(run: Run) -> None:
    device = bounded(run.devices()[3], metered_bytes_per_day=0, metered_interfaces=("lo",))
    outcome = device.start(run.name, run.ticket(3)).join()
    assert (outcome.reason, outcome.rounds) == (pb.REASON_LIMITS, 0)
    assert "limits.metered_bytes_per_day is 0" in outcome.detail


def test_on_a_link_that_the_owner_calls_metered_a_device_does_not_join(run: Run) -> None:
    device = bounded(run.devices()[3], metered_bytes_per_day=0, metered_hook=("/usr/bin/true",))
    outcome = device.start(run.name, run.ticket(3)).join()
    assert (outcome.reason, outcome.rounds) == (pb.REASON_LIMITS, 0)
