"""Runs of very many rows: what of them is held in memory."""

import functools
import gc
import tracemalloc

from made import large_rows, run_folder

from kvbench.analysis.frame import to_frame
from kvbench.store import ROWS_FILE, load


def traced(action):
    """What `action` gives, the bytes that it left in memory, and the most it held above them."""
    gc.collect()
    tracemalloc.start()
    done = action()
    gc.collect()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return done, kept, peak - kept


def test_the_rows_of_a_large_run_are_of_many_kinds():
    sizes = {"seq_lens": (1, 8192), "block_sizes": (16,), "kv_heads": (8,)}
    frame = to_frame(large_rows(2000, **sizes, samples=3))
    assert len(frame) == 2000
    assert set(frame["status"]) == {"ok", "over budget", "unsupported"}
    assert frame["strategy"].nunique() == 8
    for name in ("op", "phase", "layout", "cache_dtype", "batch", "block_order"):
        assert frame[name].nunique() == 2
    assert frame["clock"].nunique() == frame["dtype"].nunique() == 3
    assert set(map(len, frame["samples_s"].dropna())) == {3}


def test_memory_grows_with_the_rows_alone(tmp_path):
    kept, more, files = [], [], []
    for count in (1000, 3000):
        folder = run_folder(tmp_path / str(count), large_rows(count, seq_lens=(1, 8, 64)))
        files.append((folder / ROWS_FILE).stat().st_size)
        (run, *sizes) = traced(functools.partial(load, folder))
        (frame, *of_frame) = traced(functools.partial(to_frame, run.results))
        assert len(frame) == count
        kept.append((sizes[0], of_frame[0]))
        more.append((sizes[1], of_frame[1]))
    for few, many in zip(*kept, strict=True):
        assert many < 3.3 * few
    # A run is smaller than its file, and the file is never held beside it.
    assert kept[1][0] < files[1]
    assert more[1][0] < files[1] / 10
    # A frame takes its lines' references, twice for a moment.
    assert more[1][1] < 3.3 * more[0][1]
