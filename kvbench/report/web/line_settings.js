"use strict";
// The settings of charts of lines: what is shown, over what, of which phase, by which clock.

kv.lineSettings = (() => {
  const { run, data, filters } = kv;
  const { rows, cases } = run;

  const speedups = {};
  for (const [op, of] of Object.entries(run.ops)) speedups[op] = data.byRow(of.speedups, "speedup");
  const rates = data.byRow(run.rates, "tokens_per_s");

  const Y = {
    time: { label: "time per call", axis: "µs per call", log: true },
    token: { label: "time per token", axis: "µs per token", log: true },
    layer: { label: "time per layer of a step", axis: "µs per layer of a step", log: true },
    speedup: { label: "speed-up", axis: "times faster", log: true },
    bandwidth: { label: "bandwidth", axis: "GB/s", log: true },
    share: {
      label: "share of the copy's bandwidth",
      axis: "% of the copy's bandwidth",
      log: false,
    },
    rate: { label: "tokens per second", axis: "tokens per second", log: true },
  };
  // What is known of a run alone: a prepare moves no K and V, and is not compared by itself.
  const OF_BYTES = ["bandwidth", "share"];
  const OF_RUNS = ["speedup", "rate", ...OF_BYTES];

  function phases(op) {
    const found = new Set(
      data
        .rowsOf(op)
        .filter(data.ok)
        .map((row) => data.word("phase", row)),
    );
    const { once_a_step: once, whole_step: whole } = run.ops[op];
    const words = {
      run: once ? "run, once a step" : whole ? "run, all layers" : "run, once a layer",
      prepare: once ? "prepare, before a step" : "prepare, once a step",
    };
    const options = [];
    if (found.has("run") && found.has("prepare")) options.push(["both", "run and prepare"]);
    for (const phase of found) options.push([phase, words[phase] ?? `${phase} alone`]);
    if (!once && found.has("run")) {
      options.push(["step", whole ? "a whole step: prepare + run" : "a whole step of L layers"]);
    }
    return options;
  }

  // Handing work over moves nothing: by its clock there is no bandwidth.
  function clocks(op, y) {
    const found = new Set(
      data
        .rowsOf(op)
        .filter(data.ok)
        .map((row) => data.word("clock", row)),
    );
    return [...found].filter((clock) => clock !== "enqueue" || !OF_BYTES.includes(y));
  }

  function ys(op) {
    const names = ["time", "token"];
    const { once_a_step: once, whole_step: whole } = run.ops[op];
    if (!once && !whole) names.push("layer");
    if (speedups[op].size) names.push("speedup");
    if (!once && !whole) names.push("bandwidth", "share");
    if (rates.size && whole) names.push("rate");
    return names;
  }

  function xs(op) {
    const numbers = [
      ...new Set(
        data
          .rowsOf(op)
          .filter(data.ok)
          .map((row) => rows.case[row]),
      ),
    ];
    const fields = filters.varying(numbers, []);
    const options = fields.map((name) => [name, name]);
    const sizes = new Set(numbers.map((n) => cases.tokens[n]));
    if (fields.includes("batch") && sizes.size > 1)
      options.push(["tokens", "tokens (batch × seq_len)"]);
    const { once_a_step: once, whole_step: whole } = run.ops[op];
    if (!once && !whole) options.push(["layers", "layers of a step"]);
    return options;
  }

  function defaults(op, kind) {
    const y =
      { speedup: "speedup", bandwidth: "bandwidth", "tokens-per-second": "rate", layers: "layer" }[
        kind
      ] ?? "time";
    const options = xs(op).map(([name]) => name);
    const x = kind === "layers" ? "layers" : options.includes("seq_len") ? "seq_len" : options[0];
    return { y, x: x ?? "seq_len", phase: "both", clock: "wall", layers: String(run.layers) };
  }

  const isNumeric = (x) =>
    x === "layers" ||
    x === "tokens" ||
    !(x in cases.fields) ||
    cases.fields[x].values.every((value) => typeof value === "number");

  function settle(op, kind, state) {
    const one = (name, options) => {
      if (!options.includes(state[name])) [state[name]] = options;
    };
    one("y", ys(op));
    one(
      "x",
      xs(op).map(([name]) => name),
    );
    if (state.x === undefined) state.x = "seq_len";
    one("clock", clocks(op, state.y));
    if (state.x === "layers" || state.y === "layer") {
      if (!["time", "layer"].includes(state.y)) state.y = "time";
      state.phase = "step";
    }
    if (OF_RUNS.includes(state.y)) state.phase = "run";
    if (state.y === "rate") state.clock = "wall";
    one(
      "phase",
      phases(op).map(([name]) => name),
    );
    const layers = Math.round(Number(state.layers));
    state.layers = String(layers >= 1 && layers <= 10000 ? layers : run.layers);
    if (!["log", "linear"].includes(state.xscale)) state.xscale = "log";
    if (!["log", "linear"].includes(state.yscale)) state.yscale = Y[state.y].log ? "log" : "linear";
    const { numbers, fields } = fieldsOf(op, state);
    filters.settle(op, fields, numbers, state);
  }

  // Rows that a chart can show, their cases, and the fields that have to be held.
  function fieldsOf(op, state) {
    const wanted = wantedPhases(state.phase);
    const found = data
      .rowsOf(op)
      .filter(
        (row) =>
          data.ok(row) &&
          wanted.includes(data.word("phase", row)) &&
          data.word("clock", row) === state.clock &&
          (state.y !== "speedup" || speedups[op].has(row)) &&
          (state.y !== "rate" || rates.has(row)),
      );
    const numbers = [...new Set(found.map((row) => rows.case[row]))];
    const free = state.x === "tokens" ? ["seq_len"] : [state.x];
    return { found, numbers, fields: filters.varying(numbers, free) };
  }

  function wantedPhases(phase) {
    return phase === "both" || phase === "step" ? ["run", "prepare"] : [phase];
  }

  function controls(op, kind, state) {
    const { numbers, fields } = fieldsOf(op, state);
    const forced = OF_RUNS.includes(state.y) || state.y === "layer" || state.x === "layers";
    const hasLayers = state.phase === "step" && !run.ops[op].whole_step && state.x !== "layers";
    const scales = [
      ["log", "logarithmic"],
      ["linear", "linear"],
    ];
    const reference = run.ops[op].reference;
    const yOptions = ys(op).map((name) => [
      name,
      name === "speedup" ? `speed-up over ${reference}` : labelOf(name, state),
    ]);
    return [
      { name: "y", label: "Show", options: yOptions },
      { name: "x", label: "over", options: xs(op) },
      {
        name: "phase",
        label: "Phase",
        options: phases(op),
        disabled: forced,
        why: forced ? "decided by what is shown" : "",
      },
      { name: "clock", label: "Clock", options: clocks(op, state.y).map((clock) => [clock, clock]) },
      ...(hasLayers ? [{ name: "layers", label: "L, layers of a step", number: true }] : []),
      ...filters.controls(fields, numbers, state),
      ...(isNumeric(state.x)
        ? [{ name: "xscale", label: "Horizontal scale", options: scales }]
        : []),
      { name: "yscale", label: "Vertical scale", options: scales },
    ];
  }

  const labelOf = (y, state) =>
    y === "time" && state.phase === "step" ? "time per step" : Y[y].label;

  // Those that can be hidden.
  const timed = (op) => [
    ...new Set(
      data
        .rowsOf(op)
        .filter(data.ok)
        .map((row) => rows.strategy[row]),
    ),
  ];

  return {
    Y,
    speedups,
    rates,
    defaults,
    settle,
    controls,
    fieldsOf,
    isNumeric,
    labelOf,
    strategies: timed,
  };
})();
