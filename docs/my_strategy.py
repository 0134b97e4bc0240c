import torch

from kvbench.pool import flat_slots_view, no_flat_slots
from kvbench.strategies.base import Strategy
from kvbench.strategies.registry import register


@register
class WriteMine(Strategy):
    name = "write.mine"
    op = "write"
    summary = "index_copy_ over flat slots"

    def supports(self, case, device):
        if case.quantised or case.missing_blocks:
            return "quantised pools, and tokens without a block, are not for this example"
        if case.slot_dtype == "int32":
            return "index_copy_ takes 64-bit indices alone"
        return no_flat_slots(case)

    def prepare(self, workload):
        slots = workload.slot_mapping()[: workload.case.tokens]  # not the padding
        return torch.from_numpy(slots).to(workload.device)

    def run(self, workload, prepared):
        tokens = len(prepared)
        flat_slots_view(workload.key_pool).index_copy_(0, prepared, workload.key[:tokens])
        flat_slots_view(workload.value_pool).index_copy_(0, prepared, workload.value[:tokens])
