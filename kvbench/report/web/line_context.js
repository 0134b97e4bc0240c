"use strict";
// What lines are held against: the copy, the strategy that is 1, and the size of the cache.

kv.lineContext = (() => {
  const { run, data, units } = kv;
  const { rows, cases } = run;
  const { US, GB } = units;

  // Whether times are held against those of a copy: neither an index nor handing work over moves
  // K and V.
  const beside = (op, state) =>
    state.y === "time" &&
    ["run", "both"].includes(state.phase) &&
    state.clock !== "enqueue" &&
    !run.ops[op].once_a_step;

  // The same bytes at copy speed, or the copy's bandwidth.
  function traces(op, state, drawn, numeric, look) {
    const line = (x, y, text) => ({
      type: "scatter",
      mode: "lines",
      x,
      y,
      hoverinfo: "text",
      hovertext: x.map(() => units.plain(text)),
      line: { color: look.muted, width: 1.4, dash: "dash" },
    });
    if (!drawn.length || !numeric || state.x === "layers") return [];
    if (beside(op, state)) {
      const found = new Map();
      for (const point of drawn) {
        if (data.word("phase", point.row) === "run") {
          found.set(point.x, (cases.least_bytes[rows.case[point.row]] / run.copy_bytes_per_s) * US);
        }
      }
      const x = [...found.keys()].sort((a, b) => a - b);
      const text = `the same bytes at copy speed, ${units.bandwidth(run.copy_bytes_per_s)}`;
      return [
        line(
          x,
          x.map((at) => found.get(at)),
          text,
        ),
      ];
    }
    const level = { share: 100, bandwidth: run.copy_bytes_per_s * GB }[state.y];
    if (level === undefined) return [];
    const x = [...new Set(drawn.map((point) => point.x))].sort((a, b) => a - b);
    return [
      line(
        x,
        x.map(() => level),
        `the copy, ${units.bandwidth(run.copy_bytes_per_s)}`,
      ),
    ];
  }

  // A line at 1, and one where the bytes of a call outgrow the cache: left of it, beating the copy
  // is expected, as that goes to memory.
  function marks(op, state, drawn, numeric, look) {
    const line = { color: look.muted, width: 1.4 };
    if (state.y === "speedup") {
      const one = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, layer: "below", line };
      return { shapes: [one] };
    }
    const edge =
      numeric && ["time", "bandwidth", "share"].includes(state.y) ? edgeOf(state, drawn) : null;
    if (edge === null) return {};
    const dotted = { ...line, width: 1, dash: "dot" };
    const x = state.xscale === "log" ? Math.log10(edge) : edge;
    return {
      shapes: [
        {
          type: "line",
          yref: "paper",
          x0: edge,
          x1: edge,
          y0: 0,
          y1: 1,
          layer: "above", // below it the grid would hide it
          line: dotted,
        },
      ],
      annotations: [
        {
          x,
          y: 1,
          yref: "paper",
          xanchor: "right",
          yanchor: "top",
          showarrow: false,
          text: `fits ${units.bytes(run.cache_bytes)} cache`,
          bgcolor: look.paper,
          font: { size: 11, color: look.muted },
        },
      ],
    };
  }

  // Where the bytes of a call are as many as the cache has; null if that is not within the lines.
  function edgeOf(state, drawn) {
    if (run.cache_bytes === null || state.x === "layers") return null;
    const runs = drawn.filter((point) => data.word("phase", point.row) === "run" && point.x > 0);
    const found = new Map(runs.map((point) => [point.x, cases.least_bytes[rows.case[point.row]]]));
    const x = [...found.keys()].sort((a, b) => a - b);
    const after = x.findIndex((at) => found.get(at) > run.cache_bytes);
    if (after <= 0) return null;
    const [low, high] = [x[after - 1], x[after]];
    const [from, to, cache] = [found.get(low), found.get(high), run.cache_bytes].map(Math.log);
    return low * (high / low) ** ((cache - from) / (to - from));
  }

  return { beside, traces, marks };
})();
