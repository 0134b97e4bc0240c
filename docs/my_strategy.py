import torch

from kvbench.pool import flat_slots_view, slot_mapping
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register


@register
class WriteIndexCopy(Strategy):
    name = "write.index_copy"
    op = "write"
    summary = "index_copy_ over flat slots"

    def prepare(self, workload):
        w = workload
        return torch.from_numpy(slot_mapping(w.block_tables, w.starts, w.lengths, w.block_size)).to(
            w.device
        )

    def run(self, workload, prepared):
        tokens = len(prepared)
        flat_slots_view(workload.key_pool).index_copy_(0, prepared, workload.key[:tokens])
        flat_slots_view(workload.value_pool).index_copy_(0, prepared, workload.value[:tokens])
