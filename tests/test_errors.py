"""The message for a name that is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.axes import AXES
from kvbench.errors import InputError, KvbenchError, StoreError, unknown
from kvbench.presets import PRESETS
from kvbench.strategies import registry


def test_a_near_name_is_suggested_and_all_names_are_listed():
    error = unknown("strategy", "write.lop", ["write.triton", "write.loop", "read.loop"])
    assert isinstance(error, InputError)
    assert str(error) == (
        "unknown strategy 'write.lop' (did you mean 'write.loop'?); "
        "expected one of: read.loop, write.loop, write.triton"
    )


def test_without_a_near_name_nothing_is_suggested():
    error = unknown("preset", "zzz", ["smoke", "cpu"])
    assert str(error) == "unknown preset 'zzz'; expected one of: cpu, smoke"


def test_the_case_of_letters_and_quotes_in_a_name_are_shown_as_given():
    assert str(unknown("axis", "it's", ["op"])) == 'unknown axis "it\'s"; expected one of: op'


@pytest.mark.parametrize("kind", [InputError, StoreError])
def test_every_error_is_of_one_family(kind):
    assert issubclass(kind, KvbenchError)


VOCABULARIES = (
    tuple(AXES),
    tuple(PRESETS),
    tuple(strategy.name for strategy in registry.all_strategies()),
)


def without_a_letter(name: str) -> set[str]:
    return {name[:i] + name[i + 1 :] for i in range(len(name))}


@given(st.data())
def test_a_letter_left_out_leads_back_to_the_name(data):
    names = data.draw(st.sampled_from(VOCABULARIES))
    name = data.draw(st.sampled_from(names))
    others = [other for other in names if other != name]
    # "pu" is as near to cpu as to gpu.
    ambiguous = set[str]().union(*map(without_a_letter, others))
    short = data.draw(st.sampled_from(sorted(without_a_letter(name) - ambiguous)))
    assert f"(did you mean {name!r}?)" in str(unknown("name", short, names))
