"""The README's table of models is the registry's."""

import re
from pathlib import Path

from coldplate_engine.models.registry import FAMILIES
from coldplate_engine.models.rope_scaling import SCALINGS

SECTION = (
    Path(__file__)
    .parents[2]
    .joinpath("engine/README.md")
    .read_text("utf-8")
    .split("\n## Models\n")[1]
    .split("\n## ")[0]
)


def test_the_table_names_every_own_decoder() -> None:
    assert re.findall(r"^\| `(\w+)` \| own \|", SECTION, re.MULTILINE) == sorted(
        FAMILIES, key=lambda name: (name.startswith("GPT2"), list(FAMILIES).index(name))
    )


def test_the_text_names_every_kind_of_rope() -> None:
    listed = SECTION.split("Rotary positions of the own decoders:")[1].split("within the original")[0]
    assert re.findall(r"`(\w+)`", listed) == list(SCALINGS)
