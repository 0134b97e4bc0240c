"use strict";
// The points of charts of lines: a row's value as it is shown, or a step's of several rows.

kv.linePoints = (() => {
  const { run, data, units, filters } = kv;
  const { rows, cases } = run;
  const { Y, speedups, rates, fieldsOf } = kv.lineSettings;
  const { US, GB } = units;
  const LAYERS = [1, 2, 4, 8, 16, 32, 64, 128];

  // { value, low, high } of a row as it is shown; null where there is none.
  function shown(op, row, state) {
    const number = rows.case[row];
    const [middle, low, high] = [rows.median_s[row], rows.low_s[row], rows.high_s[row]];
    const times = (factor) => ({ value: middle * factor, low: low * factor, high: high * factor });
    const rate = (amount) => ({ value: amount / middle, low: amount / high, high: amount / low });
    switch (state.y) {
      case "time":
        return times(US);
      case "token":
        return cases.tokens[number] ? times(US / cases.tokens[number]) : null;
      case "speedup":
        return speedups[op].get(row) ?? null;
      case "rate":
        return rates.get(row) ?? null;
      case "bandwidth":
        return rows.nbytes[row] ? rate(rows.nbytes[row] * GB) : null;
      case "share":
        return rows.copy_share[row] === null ? null : rate(100 * rows.copy_share[row] * middle);
      default:
        return null;
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
    const counts = run.ops[op].whole_step
      ? [1]
      : state.x === "layers"
        ? layerCounts(state)
        : [Number(state.layers)];
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
          row,
          layers,
          prepare: prepare ?? null,
          value: sum("median_s") * factor,
          low: sum("low_s") * factor,
          high: sum("high_s") * factor,
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
    const all =
      state.phase === "step"
        ? stepCosts(op, state, here)
        : here
            .map((row) => ({ row, ...shown(op, row, state) }))
            .filter((p) => p.value !== undefined);
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
    const x =
      state.x === "layers" ? units.count(point.layers, "layer") : `${state.x} ${units.field(point.x)}`;
    const lines = [named(row, state), x, words(point, state)];
    if (rows.launches[row] !== null) {
      const source = data.word("launches_source", row);
      const launches = units.count(rows.launches[row], "launch", "launches");
      lines.push(`${launches} a call (${source})`);
    }
    if (rows.nbytes[row] !== null) lines.push(`${units.bytes(rows.nbytes[row])} at least`);
    if (rows.copy_share[row] !== null) {
      lines.push(`${units.significant(100 * rows.copy_share[row])} % of the copy's bandwidth`);
    }
    lines.push(`${units.count(rows.samples[row], "sample")}, ended by ${data.word("stopped_by", row)}`);
    if (!rows.resolved[row]) lines.push("unresolved: under twice the clock's floor");
    return lines;
  }

  return { points, unitOf, named, told };
})();
