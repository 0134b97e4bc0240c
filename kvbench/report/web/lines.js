"use strict";
// Lines over an axis: a line for each strategy, and for its prepare.

kv.lines = (() => {
  const { run, data, units, filters } = kv;
  const { rows, cases, strategies } = run;
  const { defaults, settle, controls, fieldsOf, isNumeric, labelOf } = kv.lineSettings;
  const { points, unitOf, named, told } = kv.linePoints;

  function title(op, state) {
    const what =
      state.y === "speedup" ? `speed-up over ${run.ops[op].reference}` : labelOf(state.y, state);
    const over = state.x === "seq_len" ? "" : ` over ${state.x === "layers" ? "layers" : state.x}`;
    return `${op}: ${what}${over}`;
  }

  // How to read it: the sentence of the kind of chart that shows the like.
  function how(op, state) {
    if (state.y === "speedup")
      return run.how.speedup.replace("{reference}", () => run.ops[op].reference);
    if (state.x === "layers" || state.y === "layer") return run.how.layers;
    const kind = { bandwidth: "bandwidth", share: "bandwidth" }[state.y];
    return run.how[kind ?? (state.y === "rate" ? "tokens-per-second" : "launch-overhead")];
  }

  function view(op, kind, state, look) {
    const { numbers, fields, found } = fieldsOf(op, state);
    const all = points(op, state);
    const visible = all.filter((point) => !look.hidden.has(rows.strategy[point.row]));
    const numeric = isNumeric(state.x);
    const logX = numeric && state.xscale === "log";
    const drawn = visible
      .filter((p) => !logX || p.x > 0)
      .filter((p) => state.yscale !== "log" || p.value > 0);
    const lines = byLine(drawn, state, numeric);
    const traces = [];
    const walked = [];
    for (const line of lines) traces.push(...bands(line, state, numeric, look));
    for (const line of lines) {
      walked.push({
        name: line.name,
        points: line.points.map((point, place) => ({
          curve: traces.length,
          point: place,
          x: point.x,
          y: point.value,
          text: told(point, state).join("; "),
        })),
      });
      traces.push(curve(line, state, numeric, look));
    }
    traces.push(...unresolved(lines, numeric, look));
    traces.push(...kv.lineContext.traces(op, state, drawn, numeric, look));
    return {
      traces,
      title: title(op, state),
      how: how(op, state),
      layout: layout(op, state, drawn, numeric, look),
      lines: walked,
      strategies: [...new Set(all.map((point) => rows.strategy[point.row]))],
      table: table(drawn, state),
      note: note(op, state, { fields, numbers }, drawn, visible.length - drawn.length),
      why:
        all.length === 0
          ? nothing(op, state, found, fields, numbers)
          : drawn.length === 0 && visible.length === 0
            ? "Every strategy is hidden: choose some below."
            : drawn.length === 0
              ? "A logarithmic scale has no 0: choose a linear one."
              : "",
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
    const order = numeric
      ? (a, b) => a.x - b.x
      : (a, b) =>
          cases.fields[state.x].values.indexOf(a.x) - cases.fields[state.x].values.indexOf(b.x);
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
      type: "scatter",
      mode: "lines+markers",
      x: line.points.map((point) => place(point, numeric)),
      y: line.points.map((point) => point.value),
      line: { color: colour, width: alone || line.strategy.hollow ? 1.4 : 2, dash },
      marker: {
        symbol: kv.markers.plotly(line.strategy),
        size: alone ? 5 : 7,
        color: colour,
        line: { color: colour, width: line.strategy.hollow ? 1.4 : 0 },
      },
      hoverinfo: "text",
      hovertext: line.points.map((point) => told(point, state).map(units.plain).join("<br>")),
      hoverlabel: { bordercolor: colour },
    };
    if (!numeric || line.points.length === 1) {
      trace.error_y = {
        type: "data",
        symmetric: false,
        thickness: 1.2,
        width: 4,
        color: colour,
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
    return [
      {
        type: "scatter",
        mode: "lines",
        fill: "toself",
        hoverinfo: "skip",
        x: [...there, ...back].map((point) => point.x),
        y: [...there.map((p) => p.high), ...back.map((p) => Math.max(p.low, floor))],
        line: { width: 0 },
        fillcolor: look.faint(line.strategy),
      },
    ];
  }

  function unresolved(lines, numeric, look) {
    const marked = lines.flatMap((line) => line.points.filter((p) => !rows.resolved[p.row]));
    if (!marked.length) return [];
    return [
      {
        type: "scatter",
        mode: "markers",
        hoverinfo: "skip",
        x: marked.map((point) => place(point, numeric)),
        y: marked.map((point) => point.value),
        marker: { symbol: "circle-open", size: 14, color: look.muted, line: { width: 1.2 } },
      },
    ];
  }

  function layout(op, state, drawn, numeric, look) {
    const label =
      state.x === "layers"
        ? "layers of a step"
        : state.x === "seq_len"
          ? "seq_len (tokens per sequence)"
          : state.x;
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
    const what =
      state.y === "speedup" ? `times faster than ${run.ops[op].reference}` : unitOf(state);
    const yaxis = { title: { text: units.plain(what) }, type: state.yscale };
    if (state.yscale === "linear") yaxis.rangemode = "tozero";
    else if (drawn.length)
      yaxis.dtick = decadeTicks(
        drawn.map((point) => point.value),
        look.narrow,
      );
    return { xaxis, yaxis, ...kv.lineContext.marks(op, state, drawn, numeric, look) };
  }

  // Ticks of a logarithmic scale: 1, 2, 5, 10, … where they have room, else powers of ten.
  function decadeTicks(values, narrow) {
    const span = Math.log10(Math.max(...values) / Math.min(...values));
    if (span > (narrow ? 3.5 : 5.5)) return 1;
    return span > 0.7 ? "D2" : undefined;
  }

  // So many of some values that their labels have room.
  function spread(values, scale, most) {
    if (values.length <= most && scale === "log") return values;
    const at = (v) => (scale === "log" ? Math.log(Math.max(v, 1e-9)) : v);
    const span = at(values.at(-1)) - at(values[0]);
    const kept = [];
    for (const value of values) {
      if (!kept.length || at(value) - at(kept.at(-1)) >= (span / (most - 1)) * 0.999)
        kept.push(value);
    }
    return kept;
  }

  function table(drawn, state) {
    const header = [
      "strategy",
      ...(state.phase === "both" ? ["phase"] : []),
      state.x,
      unitOf(state),
      "95 % interval",
      "launches",
      "bytes",
      "of the copy",
      "samples",
      "ended by",
    ];
    const lines = [...drawn].sort(
      (a, b) =>
        (named(a.row, state) < named(b.row, state)
          ? -1
          : named(a.row, state) > named(b.row, state)
            ? 1
            : 0) || (a.x < b.x ? -1 : 1),
    );
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
          rows.copy_share[row] === null
            ? missing
            : `${units.significant(100 * rows.copy_share[row])} %`,
          String(rows.samples[row]),
          data.word("stopped_by", row),
        ];
      }),
    };
  }

  function note(op, state, { fields, numbers }, drawn, without) {
    const free = state.x === "tokens" ? ["seq_len"] : [state.x];
    const parts = [
      `${filters.setting(op, fields, numbers, free, state)}. By the ${state.clock} clock: median and its 95 % interval.`,
    ];
    if (state.y === "speedup") parts.push("Ratios within rounds; run alone, without prepare.");
    if (state.phase === "both") {
      parts.push(`Dotted: prepare, ${run.ops[op].once_a_step ? "before" : "once"} a step.`);
    }
    if (state.phase === "step" && !run.ops[op].whole_step) {
      const layers = state.x === "layers" ? "L" : state.layers;
      parts.push(`A step is prepare + ${layers} × run; ends of the intervals are added.`);
    }
    if (kv.lineContext.beside(op, state)) {
      parts.push("Dashed, grey: the same bytes at copy speed.");
    }
    if (drawn.some((point) => !rows.resolved[point.row])) {
      parts.push("A ring: unresolved, under twice the time of an empty call by this clock.");
    }
    if (without) {
      const points = `${units.count(without, "point")} at 0 ${without === 1 ? "has" : "have"}`;
      parts.push(`${points} no place on a logarithmic scale.`);
    }
    return parts.join(" ");
  }

  return { defaults, settle, controls, view, strategies: kv.lineSettings.strategies };
})();
