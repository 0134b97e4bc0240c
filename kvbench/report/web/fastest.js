"use strict";
// Which strategy is fastest where: a map over two fields of the case.

kv.fastest = (() => {
  const { run, data, units, filters } = kv;
  const { cases, strategies } = run;

  const of = (op) => run.ops[op].fastest;
  const xs = (op) => filters.varying(of(op).case, []);

  function defaults(op) {
    const options = xs(op);
    const x = options.includes("seq_len") ? "seq_len" : (options[0] ?? "seq_len");
    const preferred = ["block_size", "num_kv_heads", "batch", ...options].filter((name) =>
      options.includes(name),
    );
    return { x, rows: preferred.find((name) => name !== x) ?? "block_size" };
  }

  function settle(op, kind, state) {
    const options = xs(op);
    if (!options.includes(state.x)) state.x = defaults(op).x;
    if (!options.includes(state.rows) || state.rows === state.x) {
      state.rows = options.find((name) => name !== state.x) ?? "block_size";
    }
    filters.settle(op, fieldsOf(op, state), of(op).case, state);
  }

  // Of the two axes, those that have more than one value: no other is one.
  const axesOf = (op, state) => [state.x, state.rows].filter((name) => xs(op).includes(name));

  const fieldsOf = (op, state) => filters.varying(of(op).case, [state.x, state.rows]);

  function controls(op, kind, state) {
    const options = xs(op);
    return [
      { name: "x", label: "over", options: options.map((name) => [name, name]) },
      {
        name: "rows",
        label: "and",
        options: options.filter((name) => name !== state.x).map((name) => [name, name]),
      },
      ...filters.controls(fieldsOf(op, state), of(op).case, state),
    ];
  }

  function told(op, i, state) {
    const found = of(op);
    const winner = found.winner.values[found.winner.of[i]];
    const runnerUp = found.runner_up.values[found.runner_up.of[i]];
    const ratio = `${units.significant(found.ratio[i])}x (${units.significant(found.ratio_low[i])} to ${units.significant(found.ratio_high[i])})`;
    const number = found.case[i];
    const at = axesOf(op, state).map((name) => `${name} ${units.field(data.value(name, number))}`);
    return [
      ...(at.length ? [at.join(", ")] : []),
      `${winner}: ${units.seconds(found.winner_s[i])} a step`,
      `${runnerUp} takes ${ratio} of that${found.tied[i] ? ": tied" : ""}`,
    ];
  }

  // Black or white, whichever stands out from a colour the more.
  function ink(hex) {
    const [r, g, b] = [1, 3, 5]
      .map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000000" : "#ffffff";
  }

  // A ratio with as few digits as tell it from 1.
  const times = (ratio) => `${ratio.toFixed(ratio >= 9.95 ? 0 : ratio >= 1.095 ? 1 : 2)}x`;

  function view(op, kind, state, look) {
    const found = of(op);
    const fields = fieldsOf(op, state);
    const here = found.case
      .map((_, i) => i)
      .filter((i) => filters.matches(found.case[i], fields, state));
    const axis = (field) => {
      const all = cases.fields[field] ? cases.fields[field].values : [data.value(field, 0)];
      return all.filter((value) => here.some((i) => data.value(field, found.case[i]) === value));
    };
    const [columns, lines] = [axis(state.x), axis(state.rows)];
    const axes = axesOf(op, state);
    // Of an axis with one value there is nothing to be seen over it.
    const over = [
      [state.x, columns],
      [state.rows, lines],
    ]
      .filter(([name, values]) => axes.includes(name) && values.length > 1)
      .map(([name]) => name);
    const label = (value) => units.plain(units.field(value));
    const winners = [
      ...new Set(here.map((i) => data.numberOf(found.winner.values[found.winner.of[i]]))),
    ].sort((a, b) => (strategies[a].name < strategies[b].name ? -1 : 1));
    const grid = lines.map((line) =>
      columns.map((column) =>
        here.find(
          (i) =>
            data.value(state.x, found.case[i]) === column &&
            data.value(state.rows, found.case[i]) === line,
        ),
      ),
    );
    const cell = (make, none) =>
      grid.map((line) => line.map((i) => (i === undefined ? none : make(i))));
    const winnerOf = (i) => data.numberOf(found.winner.values[found.winner.of[i]]);
    const steps = winners.flatMap((number, place) => {
      const colour = look.colour(strategies[number]);
      return [
        [place / winners.length, colour],
        [(place + 1) / winners.length, colour],
      ];
    });
    const small = columns.length > (look.narrow ? 5 : 14);
    const heat = {
      type: "heatmap",
      x: columns.map(label),
      y: lines.map(label),
      xgap: 3,
      ygap: 3,
      z: cell((i) => winners.indexOf(winnerOf(i)) + 0.5, null),
      zmin: 0,
      zmax: Math.max(winners.length, 1),
      colorscale: steps,
      showscale: false,
      hoverongaps: false,
      hoverinfo: "text",
      hovertext: cell((i) => told(op, i, state).map(units.plain).join("<br>"), ""),
    };
    const marked = grid
      .flatMap((line, y) => line.map((i, x) => ({ i, x, y })))
      .filter(({ i }) => i !== undefined);
    const ratios = {
      type: "scatter",
      mode: "text",
      hoverinfo: "skip",
      x: marked.map(({ x }) => label(columns[x])),
      y: marked.map(({ y }) => label(lines[y])),
      text: marked.map(({ i }) =>
        found.tied[i] ? "≈" : small ? "" : times(found.ratio[i]),
      ),
      textfont: {
        size: look.narrow ? 10 : 12,
        color: marked.map(({ i }) => ink(look.colour(strategies[winnerOf(i)]))),
      },
    };
    const once = run.ops[op].once_a_step;
    const cost = once
      ? "one run, without prepare"
      : run.ops[op].whole_step
        ? "prepare + run"
        : `prepare + ${run.layers} × run`;
    return {
      traces: [heat, ratios],
      strategies: [],
      height: Math.max(200, 96 + 44 * lines.length),
      title: `${op}: which strategy is fastest${over.length ? `, over ${over.join(" and ")}` : ""}`,
      swatches: winners.map((number) => ({
        text: strategies[number].name,
        drawing: kv.element("span", {
          class: "key-square",
          style: `background: ${look.colour(strategies[number])}`,
        }),
      })),
      lines: grid.map((line, y) => ({
        name: axes.includes(state.rows) ? `${state.rows} ${units.field(lines[y])}` : state.x,
        points: line
          .map((i, x) => ({ i, x }))
          .filter(({ i }) => i !== undefined)
          .map(({ i, x }) => ({
            // A cell has no number for Plotly: it is found by its place.
            hover: { curveNumber: 0, xval: x, yval: lines.length - 1 - y },
            x,
            y: lines.length - 1 - y,
            text: told(op, i, state).join("; "),
          })),
      })),
      layout: {
        xaxis: {
          type: "category",
          showgrid: false,
          ticks: "",
          title: { text: axes.includes(state.x) ? units.plain(state.x) : "" },
          showticklabels: axes.includes(state.x),
        },
        yaxis: {
          type: "category",
          categoryorder: "array",
          categoryarray: lines.map(label).reverse(), // the first above, as one reads
          showgrid: false,
          ticks: "",
          title: { text: axes.includes(state.rows) ? units.plain(state.rows) : "" },
          showticklabels: axes.includes(state.rows),
        },
      },
      table: {
        header: [
          ...axes,
          "fastest",
          "a step takes",
          "runner-up",
          "takes times that",
          "tied",
        ],
        rows: here.map((i) => [
          ...axes.map((name) => units.field(data.value(name, found.case[i]))),
          found.winner.values[found.winner.of[i]],
          units.seconds(found.winner_s[i]),
          found.runner_up.values[found.runner_up.of[i]],
          `${units.significant(found.ratio[i])}x (${units.significant(found.ratio_low[i])} to ${units.significant(found.ratio_high[i])})`,
          found.tied[i] ? "yes" : "no",
        ]),
      },
      note:
        `${filters.setting(op, fields, of(op).case, axes, state)}. Cost of a step: ${cost}. ` +
        `${small ? "Told of a cell that is pointed at" : "In a cell"}: how many times as long the ` +
        "runner-up takes; ≈ where the interval of that includes 1. By the wall clock.",
      why: here.length
        ? ""
        : of(op).case.length
          ? filters.why(fields, of(op).case, state)
          : `In no case of ${op} were two strategies timed.`,
    };
  }

  return { defaults, settle, controls, view };
})();
