"""The C++ kernel of attention: any case, any number of threads, sanitizers, other processors."""

import contextlib

import pytest
import torch
from drawn import attends
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.kernels.native import attend, library
from kvbench.strategies import registry
from kvbench.sweep.checking import check_case

CPU = torch.device("cpu")
REASON = library.attention_unsupported(CPU)
needs_kernel = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@contextlib.contextmanager
def forced(threads):
    """So many threads for any case of so many chunks."""
    before = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attend, "WORK_PER_THREAD", 1)
        torch.set_num_threads(threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


@needs_kernel
@settings(max_examples=300)
@given(case=attends(), threads=st.integers(1, 4))
def test_any_case_is_right_with_any_number_of_threads(case, threads):
    with forced(threads):
        assert check_case(case, registry.get("attend.native"), CPU) == ("checked", "")
