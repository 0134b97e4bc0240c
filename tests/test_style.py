"""Colours that can be seen and told apart, in light and dark."""

import itertools

import pytest

from kvbench.cases import OPS
from kvbench.report.palette import (
    BACKGROUNDS,
    FAMILIES,
    FLOORS,
    LEAST_CONTRAST_OF_TEXT,
    MARKERS,
    OTHERS,
    PARTS,
    contrast,
    ink_on,
    legible,
)
from kvbench.report.style import colour
from kvbench.strategies import registry

registry.load_builtin()
NAMES = [strategy.name for strategy in registry.all_strategies()]
LEAST_CONTRAST = 3.0
"""What WCAG 2 asks of a line that carries a meaning."""


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#777777", "#FFFFFF") == contrast("#FFFFFF", "#777777")
    # Its own examples: the darkest grey that is not enough for text, and the first that is.
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.005)
    assert contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.005)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_strategy_can_be_seen_on_its_background(dark):
    background = BACKGROUNDS[dark]
    seen = {name: colour(name, dark=dark) for name in [*NAMES, "write.mine", "read.another"]}
    weak = {name: own for name, own in seen.items() if contrast(own, background) < LEAST_CONTRAST}
    assert weak == {}
    assert all(contrast(pair[dark], background) >= LEAST_CONTRAST for pair in PARTS.values())
    rest = [FLOORS[dark], *(pair[dark] for pair in OTHERS)]
    assert all(contrast(own, background) >= LEAST_CONTRAST_OF_TEXT for own in rest)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("op", [op for op in OPS if op != "step"])
def test_families_of_an_op_differ_in_light_and_in_dark(op, dark):
    families = {
        name.partition(".")[2].removeprefix("sdpa_"): colour(name, dark=dark)
        for name in NAMES
        if name.startswith(f"{op}.")
    }
    assert families.keys() <= FAMILIES.keys() <= MARKERS.keys()
    for (one, its), (other, others) in itertools.combinations(families.items(), 2):
        assert its != others, (one, other)
        assert apart(its, others) > 0.08, (one, other)


def apart(one: str, other: str) -> float:
    """How far apart two colours are for an eye, in OKLab: 1 from black to white."""
    return sum((a - b) ** 2 for a, b in zip(_oklab(one), _oklab(other), strict=True)) ** 0.5


def _oklab(own: str) -> tuple[float, ...]:
    parts = [int(own[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    rgb = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    cones = [
        sum(weight * value for weight, value in zip(weights, rgb, strict=True)) ** (1 / 3)
        for weights in (
            (0.4122214708, 0.5363325363, 0.0514459929),
            (0.2119034982, 0.6806995451, 0.1073969566),
            (0.0883024619, 0.2817188376, 0.6299787005),
        )
    ]
    return tuple(
        sum(weight * cone for weight, cone in zip(weights, cones, strict=True))
        for weights in (
            (0.2104542553, 0.793617785, -0.0040720468),
            (1.9779984951, -2.428592205, 0.4505937099),
            (0.0259040371, 0.7827717662, -0.808675766),
        )
    )


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_the_name_of_a_line_is_legible_and_of_its_colour(background):
    for name in NAMES:
        own = colour(name, dark=background != "#FFFFFF")
        text = legible(own, background)
        assert contrast(text, background) >= LEAST_CONTRAST_OF_TEXT
        assert apart(own, text) < 0.15
    assert legible("#000000", "#FFFFFF") == "#000000"
    assert legible("#FFFFFF", "#FFFFFF") == "#737373"


def test_text_on_any_colour_is_legible():
    for own in {*itertools.chain(*FAMILIES.values(), *PARTS.values(), *OTHERS, FLOORS)}:
        assert contrast(own, ink_on(own)) >= LEAST_CONTRAST_OF_TEXT
