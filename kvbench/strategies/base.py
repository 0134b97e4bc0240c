"""The interface of a strategy: a name, an op, and up to four methods."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch

from kvbench.cases import Case
from kvbench.errors import StrategyError
from kvbench.results import Part, Phase
from kvbench.workload import Workload


class Strategy(ABC):
    """One way of doing one op.

    A strategy is stateless; what it needs between `prepare` and `run` is what `prepare` returns.
    It reads `workload`'s tensors and lists. A write changes the two pools in place, and the scales
    where each token has its own; a step those of every layer; a read the outputs that it is given,
    if it is; an index or an attend nothing.
    """

    name: ClassVar[str]
    """Unique, as "write.loop"."""
    op: ClassVar[str]
    """The op it does: one of `cases.OPS`."""
    summary: ClassVar[str]
    """What it does, in one line, for `kvbench list`."""
    parts: ClassVar[tuple[Part, ...]] = ()
    """Parts of `run` that are timed by themselves as well, in the same rounds: see `run_part`."""

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        """None if it can do this case on this device, else the reason why not."""
        return None

    def untimed(self, device: torch.device) -> str | None:  # noqa: ARG002
        """None if its time on this device means something, else why it is checked, never timed."""
        return None

    def prepare(self, workload: Workload) -> Any:  # noqa: ANN401, ARG002 - the strategy's own
        """What an engine does once per step: build a slot mapping, upload a table, compile.

        Of an index, which is itself done once per step, it is what was done before the step: what
        stays on the device from step to step is put there, and buffers are allocated.

        Returns:
            Whatever `run` needs. A strategy that does everything in every call has no `prepare`.
        """
        return None

    @abstractmethod
    def run(
        self,
        workload: Workload,
        prepared: Any,  # noqa: ANN401 - the strategy's own
    ) -> tuple[torch.Tensor, torch.Tensor] | torch.Tensor | None:
        """What an engine does once per layer; an index, and a whole step, once per step.

        Args:
            workload: The case's tensors and the scheduler's lists.
            prepared: What `prepare` returned for this workload.

        Returns:
            None for a write. For a read, (K, V), each [tokens, *slot] in the workload's dtype,
            sequence after sequence, a slot being [num_kv_heads, dim] as in its pool: the very
            tensors of `workload.outputs` where they are given. For an attend, its output,
            contiguous [batch * query_len, num_heads, value_head_dim] in the workload's dtype. For
            an index, the slot mapping on the device: what `Workload.slot_mapping` gives, any
            negative slot for another. For a step, the logits of its tokens,
            [batch, cases.VOCABULARY] in the workload's dtype.
        """

    def run_part(
        self,
        part: Part,
        workload: Workload,
        prepared: Any,  # noqa: ANN401 - the strategy's own
    ) -> object:
        """One of `parts` alone.

        The gather of an attend copies K and V out of the pools: it is what reading blocks in place
        would save. The write and the attend of a step are those of all layers, of the workload's
        own rows instead of the model's.
        """
        raise NotImplementedError(f"{self.name}: {part}")

    @classmethod
    def has_prepare(cls) -> bool:
        """Whether it does anything once per step."""
        return cls.prepare is not Strategy.prepare

    @classmethod
    def phases(cls) -> tuple[Phase, ...]:
        """What of it is timed by itself: what is timed at all has a row per phase and clock."""
        once: tuple[Phase, ...] = ("prepare",) if cls.has_prepare() else ()
        return ("run", *once, *cls.parts)


def why_unsupported(strategy: Strategy, case: Case, device: torch.device) -> str | None:
    """What `supports` answers.

    Raises:
        StrategyError: It fails, or answers neither None nor a reason.
    """
    return _answer(strategy, "supports", case, device)


def why_untimed(strategy: Strategy, device: torch.device) -> str | None:
    """What `untimed` answers.

    Raises:
        StrategyError: It fails, or answers neither None nor a reason.
    """
    return _answer(strategy, "untimed", device)


def _answer(
    strategy: Strategy, method: Literal["supports", "untimed"], *arguments: object
) -> str | None:
    try:
        answer = getattr(strategy, method)(*arguments)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise StrategyError(f"strategy {strategy.name!r}: {method} failed: {what}") from error
    if not isinstance(answer, str | None):
        raise StrategyError(
            f"strategy {strategy.name!r}: {method} returned {answer!r}; "
            "expected None or the reason why not"
        )
    return answer
