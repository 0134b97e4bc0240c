"""Generation with a clock: when each token came, and what a step is made of."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from kvbench.engine.generation import Engine, Request
from kvbench.engine.paged import Part
from kvbench.engine.timeline import TimedStep, Timeline


class Stopwatch:
    """A `Watch` that adds up the time in each part of a step.

    Args:
        synchronize: Waits for the device before a part begins and after it ends. Without it a
            part's time on a GPU would be that of handing the work over.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.parts_s: dict[str, float] = {}
        self._synchronize = synchronize
        self._part, self._begun = "", 0.0

    def __call__(self, part: Part) -> "Stopwatch":
        """Time what is done within; parts don't nest."""
        self._part = part
        return self

    def __enter__(self) -> None:
        self._synchronize()
        self._begun = time.perf_counter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._synchronize()
        elapsed = time.perf_counter() - self._begun
        self.parts_s[self._part] = self.parts_s.get(self._part, 0.0) + elapsed


def serve(
    engine: Engine,
    requests: Sequence[Request],
    synchronize: Callable[[], None],
    on_token: Callable[[Request, int], None] = lambda _request, _token: None,
) -> Timeline:
    """Step until every request is done.

    Every second step after all first tokens is taken apart. Waiting for the device around each
    part makes a step longer, so that times of tokens are of the other steps.

    Args:
        engine: What the requests were added to, and nothing else.
        requests: In the order of the result.
        synchronize: Waits for the device.
        on_token: Told of each token; its own time is not counted.
    """
    steps: list[TimedStep] = []
    firsts_s: dict[Request, float] = {}
    latest_s: dict[Request, float] = {}
    gaps_s: list[float] = []
    now_s = disturbed_s = 0.0
    alternate = False
    while engine.busy:
        watch = None
        if all(request in firsts_s for request in requests):
            watch = Stopwatch(synchronize) if alternate else None
            alternate = not alternate
        begun = time.perf_counter()
        done = engine.step(watch)  # its tokens are on the host: the device is done
        duration_s = time.perf_counter() - begun
        now_s += duration_s
        if watch is not None:
            disturbed_s = now_s
        parts_s = None if watch is None else watch.parts_s
        steps.append(
            TimedStep(duration_s, done.new_tokens, done.sequences, len(done.advanced), parts_s)
        )
        for request in done.advanced:
            before_s = latest_s.get(request)
            if before_s is None:
                firsts_s[request] = now_s
            elif before_s >= disturbed_s:
                gaps_s.append(now_s - before_s)
            latest_s[request] = now_s
        for request in done.advanced:
            on_token(request, request.generated[-1])
    return Timeline(
        steps=tuple(steps),
        firsts_s=tuple(firsts_s[request] for request in requests),
        gaps_s=tuple(gaps_s),
        prompt_tokens=sum(len(request.prompt) for request in requests),
        shared_tokens=sum(request.shared for request in requests),
        generated_tokens=sum(len(request.generated) for request in requests),
        preemptions=sum(request.preempted for request in requests),
    )
