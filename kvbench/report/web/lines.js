"use strict";
// Lines over an axis: a line for each strategy, and for its prepare. Time, speed-up, bandwidth, …

kv.lines = (() => {
  const { run, data, units, filters } = kv;
  const { rows, cases, strategies } = run;
  const US = 1e6;
  const GB = 1e-9;
  const LAYERS = [1, 2, 4, 8, 16, 32, 64, 128];
  const COPY = "copy";

  const speedups = {};
  for (const [op, of] of Object.entries(run.ops)) speedups[op] = data.byRow(of.speedups, "speedup");
  const rates = data.byRow(run.rates, "tokens_per_s");

  const Y = {
    time: { label: "time per call", axis: "µs per call", log: true },
    token: { label: "time per token", axis: "µs per token", log: true },
    layer: { label: "time per layer of a step", axis: "µs per layer of a step", log: true },
    speedup: { label: "speed-up", axis: "times faster", log: true },
    bandwidth: { label: "bandwidth", axis: "GB/s", log: true },
    share: { label: "share of the copy's bandwidth", axis: "% of the copy's bandwidth", log: false },
    rate: { label: "tokens per second", axis: "tokens per second", log: true },
  };
  // What is known of a run alone: a prepare moves no K and V, and is not compared by itself.
  const OF_RUNS = ["speedup", "bandwidth", "share", "rate"];

  function phases(op) {
    const found = new Set(data.rowsOf(op).filter(data.ok).map((row) => data.word("phase", row)));
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

  function clocks(op) {
    return [...new Set(data.rowsOf(op).filter(data.ok).map((row) => data.word("clock", row)))];
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
    const numbers = [...new Set(data.rowsOf(op).filter(data.ok).map((row) => rows.case[row]))];
    const fields = filters.varying(numbers, []);
    const options = fields.map((name) => [name, name]);
    const sizes = new Set(numbers.map((n) => cases.tokens[n]));
    if (fields.includes("batch") && sizes.size > 1) options.push(["tokens", "tokens (batch × seq_len)"]);
    const { once_a_step: once, whole_step: whole } = run.ops[op];
    if (!once && !whole) options.push(["layers", "layers of a step"]);
    return options;
  }

  function defaults(op, kind) {
    const y = { speedup: "speedup", bandwidth: "bandwidth", "tokens-per-second": "rate" }[kind] ?? "time";
    const options = xs(op).map(([name]) => name);
    const x = kind === "layers" ? "layers" : options.includes("seq_len") ? "seq_len" : options[0];
    return { y, x: x ?? "seq_len", phase: "both", clock: "wall", layers: String(run.layers) };
  }

  const isNumeric = (x) =>
    x === "layers" || x === "tokens" || !(x in cases.fields)
    || cases.fields[x].values.every((value) => typeof value === "number");

  function settle(op, kind, state) {
    const one = (name, options) => {
      if (!options.includes(state[name])) [state[name]] = options;
    };
    one("y", ys(op));
    one("x", xs(op).map(([name]) => name));
    if (state.x === undefined) state.x = "seq_len";
    one("clock", clocks(op));
    if (state.x === "layers" || state.y === "layer") {
      if (!["time", "layer"].includes(state.y)) state.y = "time";
      state.phase = "step";
    }
    if (OF_RUNS.includes(state.y)) state.phase = "run";
    if (state.y === "rate") state.clock = "wall";
    one("phase", phases(op).map(([name]) => name));
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
    const found = data.rowsOf(op).filter(
      (row) => data.ok(row)
        && wanted.includes(data.word("phase", row))
        && data.word("clock", row) === state.clock
        && (state.y !== "speedup" || speedups[op].has(row))
        && (state.y !== "rate" || rates.has(row)),
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
    const scales = [["log", "logarithmic"], ["linear", "linear"]];
    const reference = run.ops[op].reference;
    const yOptions = ys(op).map((name) => [
      name, name === "speedup" ? `speed-up over ${reference}` : labelOf(name, state),
    ]);
    return [
      { name: "y", label: "Show", options: yOptions },
      { name: "x", label: "over", options: xs(op) },
      {
        name: "phase", label: "Phase", options: phases(op), disabled: forced,
        why: forced ? "decided by what is shown" : "",
      },
      { name: "clock", label: "Clock", options: clocks(op).map((clock) => [clock, clock]) },
      ...(hasLayers ? [{ name: "layers", label: "L, layers of a step", number: true }] : []),
      ...filters.controls(fields, numbers, state),
      ...(isNumeric(state.x) ? [{ name: "xscale", label: "Horizontal scale", options: scales }] : []),
      { name: "yscale", label: "Vertical scale", options: scales },
    ];
  }

  const labelOf = (y, state) =>
    (y === "time" && state.phase === "step" ? "time per step" : Y[y].label);

  function title(op, state) {
    const what = state.y === "speedup" ? `speed-up over ${run.ops[op].reference}` : labelOf(state.y, state);
    const over = state.x === "seq_len" ? "" : ` over ${state.x === "layers" ? "layers" : state.x}`;
    return `${op}: ${what}${over}`;
  }

  // { value, low, high } of a row as it is shown; null where there is none.
  function shown(op, row, state) {
    const number = rows.case[row];
    const [middle, low, high] = [rows.median_s[row], rows.low_s[row], rows.high_s[row]];
    const times = (factor) => ({ value: middle * factor, low: low * factor, high: high * factor });
    const rate = (amount) => ({ value: amount / middle, low: amount / high, high: amount / low });
    switch (state.y) {
      case "time": return times(US);
      case "token": return cases.tokens[number] ? times(US / cases.tokens[number]) : null;
      case "speedup": return speedups[op].get(row) ?? null;
      case "rate": return rates.get(row) ?? null;
      case "bandwidth": return rows.nbytes[row] ? rate(rows.nbytes[row] * GB) : null;
      case "share":
        return rows.copy_share[row] === null ? null : rate(100 * rows.copy_share[row] * middle);
      default: return null;
    }
  }

  // Of a whole step: prepare + L x run, as analysis.ranking.step_costs has it. The ends of its
  // interval are those of its parts, added: wider than an interval of the sum.
  function stepCosts(op, state, found) {
    const once = new Map();
    const name = (row) => `${rows.case[row]} ${rows.strategy[row]}`;
    for (const row of data.rowsOf(op)) {
      if (data.word("phase", row) !== "prepare") continue;
      if (!data.ok(row)) once.set(name(row), null);
      else if (data.word("clock", row) === state.clock && once.get(name(row)) !== null) {
        once.set(name(row), row);
      }
    }
    const counts = run.ops[op].whole_step ? [1] : state.x === "layers" ? layerCounts(state) : [Number(state.layers)];
    const points = [];
    for (const row of found) {
      if (data.word("phase", row) !== "run") continue;
      const prepare = once.get(name(row));
      if (prepare === null) continue; // what a step costs whose prepare is not known is not known
      for (const layers of counts) {
        const sum = (column) =>
          (prepare === undefined ? 0 : rows[column][prepare]) + layers * rows[column][row];
        const tokens = cases.tokens[rows.case[row]];
        const factor = { time: US, token: tokens ? US / tokens : NaN, layer: US / layers }[state.y];
        if (Number.isNaN(factor)) continue;
        points.push({
          row, layers, prepare: prepare ?? null,
          value: sum("median_s") * factor, low: sum("low_s") * factor, high: sum("high_s") * factor,
        });
      }
    }
    return points;
  }

  function layerCounts(state) {
    return [...new Set([...LAYERS, Number(state.layers)])].sort((a, b) => a - b);
  }

  function points(op, state) {
    const { found, fields } = fieldsOf(op, state);
    const here = found.filter((row) => filters.matches(rows.case[row], fields, state));
    const all = state.phase === "step"
      ? stepCosts(op, state, here)
      : here.map((row) => ({ row, ...shown(op, row, state) })).filter((p) => p.value !== undefined);
    for (const point of all) {
      point.x = state.x === "layers" ? point.layers : data.value(state.x, rows.case[point.row]);
    }
    return all;
  }

  function unitOf(state) {
    return state.phase === "step" && state.y === "time" ? "µs per step" : Y[state.y].axis;
  }

  // The value with its interval and unit, for people.
  function words(point, state) {
    const { value, low, high } = point;
    if (["time", "token", "layer"].includes(state.y)) {
      const behind = { token: " per token", layer: " per layer" }[state.y] ?? "";
      return units.secondsInterval(value / US, low / US, high / US) + behind;
    }
    const [a, b, c] = [value, low, high].map((v) => units.significant(v));
    const unit = { speedup: "x", bandwidth: " GB/s", share: " %", rate: " tokens/s" }[state.y];
    return state.y === "speedup" ? `${a}x (${b} to ${c})` : `${a} (${b} to ${c})${unit}`;
  }

  function named(row, state) {
    const phase = data.word("phase", row);
    const name = data.strategy(row).name;
    return state.phase === "step" || phase === "run" ? name : `${name}, ${phase}`;
  }

  // All that is known of a point, a line each.
  function told(point, state) {
    const { row } = point;
    const x = state.x === "layers" ? `${point.layers} layers` : `${state.x} ${units.field(point.x)}`;
    const lines = [named(row, state), x, words(point, state)];
    if (rows.launches[row] !== null) {
      const source = data.word("launches_source", row);
      lines.push(`${units.field(rows.launches[row])} launches a call (${source})`);
    }
    if (rows.nbytes[row] !== null) lines.push(`${units.bytes(rows.nbytes[row])} at least`);
    if (rows.copy_share[row] !== null) {
      lines.push(`${units.significant(100 * rows.copy_share[row])} % of the copy's bandwidth`);
    }
    lines.push(`${rows.samples[row]} samples, ended by ${data.word("stopped_by", row)}`);
    if (!rows.resolved[row]) lines.push("unresolved: under twice the clock's floor");
    return lines;
  }

  function view(op, kind, state, look) {
    const { numbers, fields, found } = fieldsOf(op, state);
    const all = points(op, state);
    const visible = all.filter((point) => !look.hidden.has(rows.strategy[point.row]));
    const numeric = isNumeric(state.x);
    const logX = numeric && state.xscale === "log";
    const drawn = visible.filter((p) => !logX || p.x > 0).filter((p) => state.yscale !== "log" || p.value > 0);
    const lines = byLine(drawn, state, numeric);
    const traces = [];
    const walked = [];
    for (const line of lines) traces.push(...bands(line, state, numeric, look));
    for (const line of lines) {
      walked.push({
        name: line.name,
        points: line.points.map((point, place) => ({
          curve: traces.length, point: place, x: point.x, y: point.value,
          text: told(point, state).join("; "),
        })),
      });
      traces.push(curve(line, state, numeric, look));
    }
    traces.push(...unresolved(lines, numeric, look));
    traces.push(...context(op, state, drawn, numeric, look));
    return {
      traces,
      title: title(op, state),
      layout: layout(op, state, drawn, numeric, look),
      lines: walked,
      strategies: [...new Set(all.map((point) => rows.strategy[point.row]))],
      table: table(drawn, state),
      note: note(op, state, { fields, numbers }, visible.length - drawn.length),
      why: all.length === 0 ? nothing(op, state, found, fields, numbers)
        : drawn.length === 0 && visible.length === 0 ? "Every strategy is hidden: choose some below."
        : drawn.length === 0 ? "A logarithmic scale has no 0: choose a linear one." : "",
    };
  }

  function nothing(op, state, found, fields, numbers) {
    if (found.length) return filters.why(fields, numbers, state);
    const others = data.rowsOf(op).filter((row) => !data.ok(row));
    const reasons = new Set(others.map((row) => data.word("reason", row)));
    const [first] = reasons;
    return first === undefined
      ? `No ${op} was timed by the ${state.clock} clock.`
      : `No ${op} was timed by the ${state.clock} clock. One of ${reasons.size} reasons: ${first}`;
  }

  function byLine(drawn, state, numeric) {
    const found = new Map();
    for (const point of drawn) {
      const name = named(point.row, state);
      if (!found.has(name)) found.set(name, { name, points: [] });
      found.get(name).points.push(point);
    }
    const order = numeric ? (a, b) => a.x - b.x
      : (a, b) => cases.fields[state.x].values.indexOf(a.x) - cases.fields[state.x].values.indexOf(b.x);
    for (const line of found.values()) {
      line.points.sort(order);
      line.strategy = strategies[rows.strategy[line.points[0].row]];
      line.phase = state.phase === "step" ? "run" : data.word("phase", line.points[0].row);
    }
    return [...found.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  const place = (point, numeric) => (numeric ? point.x : units.plain(units.field(point.x)));

  function curve(line, state, numeric, look) {
    const colour = look.colour(line.strategy);
    const alone = line.phase !== "run" && state.phase === "both";
    const dash = alone ? "dot" : line.strategy.dashed ? "dash" : "solid";
    const trace = {
      type: "scatter", mode: "lines+markers",
      x: line.points.map((point) => place(point, numeric)),
      y: line.points.map((point) => point.value),
      line: { color: colour, width: alone || line.strategy.hollow ? 1.4 : 2, dash },
      marker: {
        symbol: kv.markers.plotly(line.strategy), size: alone ? 5 : 7, color: colour,
        line: { color: colour, width: line.strategy.hollow ? 1.4 : 0 },
      },
      hoverinfo: "text",
      hovertext: line.points.map((point) => told(point, state).map(units.plain).join("<br>")),
      hoverlabel: { bordercolor: colour },
    };
    if (!numeric || line.points.length === 1) {
      trace.error_y = {
        type: "data", symmetric: false, thickness: 1.2, width: 4, color: colour,
        array: line.points.map((point) => point.high - point.value),
        arrayminus: line.points.map((point) => point.value - point.low),
      };
    }
    return trace;
  }

  // The interval of a line's points as a band; where there is no line to it, `curve` has bars.
  function bands(line, state, numeric, look) {
    if (!numeric || line.points.length === 1) return [];
    const there = line.points;
    const back = [...there].reverse();
    const floor = state.yscale === "log" ? 1e-12 : -Infinity;
    return [{
      type: "scatter", mode: "lines", fill: "toself", hoverinfo: "skip",
      x: [...there, ...back].map((point) => point.x),
      y: [...there.map((p) => p.high), ...back.map((p) => Math.max(p.low, floor))],
      line: { width: 0 }, fillcolor: look.faint(line.strategy),
    }];
  }

  function unresolved(lines, numeric, look) {
    const marked = lines.flatMap((line) => line.points.filter((p) => !rows.resolved[p.row]));
    if (!marked.length) return [];
    return [{
      type: "scatter", mode: "markers", hoverinfo: "skip",
      x: marked.map((point) => place(point, numeric)), y: marked.map((point) => point.value),
      marker: { symbol: "circle-open", size: 14, color: look.muted, line: { width: 1.2 } },
    }];
  }

  // What lines are held against: the same bytes at copy speed, or the strategy that is 1.
  function context(op, state, drawn, numeric, look) {
    const line = (x, y, text) => ({
      type: "scatter", mode: "lines", x, y, hoverinfo: "text",
      hovertext: x.map(() => units.plain(text)),
      line: { color: look.muted, width: 1.4, dash: "dash" },
    });
    if (!drawn.length || !numeric || state.x === "layers") return [];
    if (state.y === "time" && ["run", "both"].includes(state.phase) && moves(op)) {
      const found = new Map();
      for (const point of drawn) {
        if (data.word("phase", point.row) === "run") {
          found.set(point.x, (cases.least_bytes[rows.case[point.row]] / run.copy_bytes_per_s) * US);
        }
      }
      const x = [...found.keys()].sort((a, b) => a - b);
      const text = `the same bytes at copy speed, ${units.bandwidth(run.copy_bytes_per_s)}`;
      return [line(x, x.map((at) => found.get(at)), text)];
    }
    const level = { share: 100, bandwidth: run.copy_bytes_per_s * GB }[state.y];
    if (level === undefined) return [];
    const x = [...new Set(drawn.map((point) => point.x))].sort((a, b) => a - b);
    return [line(x, x.map(() => level), `the copy, ${units.bandwidth(run.copy_bytes_per_s)}`)];
  }

  const moves = (op) => !run.ops[op].once_a_step;

  function layout(op, state, drawn, numeric, look) {
    const label = state.x === "layers" ? "layers of a step"
      : state.x === "seq_len" ? "seq_len (tokens per sequence)" : state.x;
    const xaxis = { title: { text: units.plain(label) } };
    if (!numeric) {
      const values = cases.fields[state.x].values.map((v) => units.plain(units.field(v)));
      Object.assign(xaxis, { type: "category", categoryorder: "array", categoryarray: values });
    } else {
      xaxis.type = state.xscale;
      const at = [...new Set(drawn.map((point) => point.x))].sort((a, b) => a - b);
      const kept = spread(at, state.xscale, look.narrow ? 6 : 14);
      xaxis.tickvals = kept;
      xaxis.ticktext = kept.map((value) => units.field(value));
    }
    const what = state.y === "speedup" ? `times faster than ${run.ops[op].reference}` : unitOf(state);
    const yaxis = { title: { text: units.plain(what) }, type: state.yscale };
    if (state.yscale === "linear") yaxis.rangemode = "tozero";
    const shapes = state.y === "speedup" ? [{
      type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, layer: "below",
      line: { color: look.muted, width: 1.4 },
    }] : [];
    return { xaxis, yaxis, shapes };
  }

  // So many of some values that their labels have room.
  function spread(values, scale, most) {
    if (values.length <= most && scale === "log") return values;
    const at = (v) => (scale === "log" ? Math.log(Math.max(v, 1e-9)) : v);
    const span = at(values.at(-1)) - at(values[0]);
    const kept = [];
    for (const value of values) {
      if (!kept.length || at(value) - at(kept.at(-1)) >= span / (most - 1) * 0.999) kept.push(value);
    }
    return kept;
  }

  function table(drawn, state) {
    const header = [
      "strategy", ...(state.phase === "both" ? ["phase"] : []), state.x,
      unitOf(state), "95 % interval", "launches", "bytes", "of the copy", "samples", "ended by",
    ];
    const lines = [...drawn].sort((a, b) =>
      (named(a.row, state) < named(b.row, state) ? -1 : named(a.row, state) > named(b.row, state) ? 1 : 0)
      || (a.x < b.x ? -1 : 1));
    return {
      header,
      rows: lines.map((point) => {
        const { row } = point;
        const missing = "—";
        return [
          data.strategy(row).name,
          ...(state.phase === "both" ? [data.word("phase", row)] : []),
          units.field(point.x),
          units.significant(point.value, 4) + (rows.resolved[row] ? "" : " (unresolved)"),
          `${units.significant(point.low, 4)} to ${units.significant(point.high, 4)}`,
          rows.launches[row] === null ? missing : units.field(rows.launches[row]),
          rows.nbytes[row] === null ? missing : units.bytes(rows.nbytes[row]),
          rows.copy_share[row] === null ? missing : `${units.significant(100 * rows.copy_share[row])} %`,
          String(rows.samples[row]),
          data.word("stopped_by", row),
        ];
      }),
    };
  }

  function note(op, state, { fields, numbers }, without) {
    const free = state.x === "tokens" ? ["seq_len"] : [state.x];
    const parts = [`${filters.setting(op, fields, numbers, free, state)}. ${state.clock} clock, median and its 95 % interval.`];
    if (state.y === "speedup") parts.push("Ratios within rounds; run alone, without prepare.");
    if (state.phase === "both") parts.push("Dotted: prepare, once a step.");
    if (state.phase === "step" && !run.ops[op].whole_step) {
      const layers = state.x === "layers" ? "L" : state.layers;
      parts.push(`A step is prepare + ${layers} × run; ends of the intervals are added.`);
    }
    if (state.y === "time" && moves(op) && ["run", "both"].includes(state.phase)) {
      parts.push("Dashed, grey: the same bytes at copy speed.");
    }
    if (without) parts.push(`${without} points at 0 have no place on a logarithmic scale.`);
    return parts.join(" ");
  }

  // Those that can be hidden.
  const timed = (op) => [...new Set(data.rowsOf(op).filter(data.ok).map((row) => rows.strategy[row]))];

  return { defaults, settle, controls, view, strategies: timed };
})();
