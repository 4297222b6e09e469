"""A number for each tier, as text."""

import pytest

from engine.contract import Tier
from engine.contract.tier_values import parse_tier_values, tier_values_text

DEFAULT = "vip=10,standard=7,batch=20"


def parse(text: str) -> dict[Tier, float]:
    return parse_tier_values(text, DEFAULT, low=0.5, high=100)


def test_what_is_left_out_is_as_in_the_default() -> None:
    assert parse(DEFAULT) == {Tier.VIP: 10, Tier.STANDARD: 7, Tier.BATCH: 20}
    assert parse(" batch=1.5 , vip=2") == {Tier.VIP: 2, Tier.STANDARD: 7, Tier.BATCH: 1.5}


def test_a_number_alone_is_for_all() -> None:
    assert parse("3") == dict.fromkeys(Tier, 3.0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "gold=1", "vip", "vip=", "vip=x", "vip=nan", "vip=inf", "vip=0.4", "vip=101"),
        *("vip=-1", "vip=1,vip=2", "3,vip=4", "vip=1,,batch=2", "vip=1;batch=2"),
    ],
)
def test_anything_else_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"tier=number for vip, standard and batch.* 0\.5 to 100"):
        parse(text)


def test_the_text_is_read_back() -> None:
    for text in (DEFAULT, "vip=0.1,standard=99.99,batch=33.3333"):
        values = parse_tier_values(text, DEFAULT, low=0, high=100)
        assert tier_values_text(values) == text
