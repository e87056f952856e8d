"""Which machines are supported: one clear line for every other."""

from __future__ import annotations

import pytest

from umbel.host.platforms import Platform, check_platform, this_machine
from umbel.protocol.errors import SettingsError


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", [(3, 11), (3, 14)])
def test_supported_ones_pass(machine: str, python: tuple[int, int]) -> None:
    check_platform(Platform("Linux", machine, 64, python))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Platform("Darwin", "arm64", 64, (3, 12)), "64-bit Darwin on arm64 with Python 3.12"),
        (Platform("Windows", "AMD64", 64, (3, 12)), "64-bit Windows on AMD64 with Python 3.12"),
        (Platform("Linux", "armv7l", 32, (3, 11)), "32-bit Linux on armv7l with Python 3.11"),
        (Platform("Linux", "aarch64", 32, (3, 11)), "32-bit Linux on aarch64 with Python 3.11"),
        (Platform("Linux", "riscv64", 64, (3, 12)), "64-bit Linux on riscv64 with Python 3.12"),
        (Platform("Linux", "x86_64", 64, (3, 10)), "64-bit Linux on x86_64 with Python 3.10"),
    ],
)
def test_every_other_is_refused_in_one_line(found: Platform, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        check_platform(found)
    assert str(error.value) == (
        "platform: expected 64-bit Linux on x86-64 or aarch64 with Python 3.11 or later, "
        f"got '{said}'; use another machine"
    )


def test_the_machine_of_this_test_is_looked_at() -> None:
    assert this_machine().system == "Linux"
    check_platform()
