"use strict";
// Stacked bars: what a call's time is made of by the fit, and a step's by its phases. Strategies
// have theirs one below the other, as their names have room beside bars alone.

kv.stacks = (() => {
  const { run, data, units, filters } = kv;
  const { rows, cases, strategies } = run;
  const { US } = units;

  const KINDS = {
    breakdown: {
      parts: [
        ["call_s", "the call", "call"],
        ["launches_s", "its launches", "launches"],
        ["bytes_s", "moving its bytes", "bytes"],
      ],
      columns: (op) => run.ops[op].breakdown,
      x: "strategy",
      share: true,
    },
    amortisation: {
      parts: [
        ["prepare_s", "prepare", "prepare"],
        ["write_s", "write", "write"],
        ["attend_s", "attend", "attend"],
        ["rest_s", "the rest of the model", "rest"],
      ],
      columns: () => run.parts,
      x: "num_layers",
      share: false,
    },
  };

  // Characters of a name beside its bar.
  const MOST_WIDE = 32;
  const MOST_NARROW = 20;

  // By row, what each part takes in seconds.
  const found = new Map();
  function partsOf(op, kind) {
    const name = `${op} ${kind}`;
    if (!found.has(name)) {
      const columns = KINDS[kind].columns(op);
      found.set(
        name,
        new Map(
          columns.row.map((row, i) => [
            row,
            {
              parts: KINDS[kind].parts.map(([part]) => columns[part][i]),
              rest: columns.rest_s[i],
              split: kind === "breakdown" ? Boolean(columns.split[i]) : true,
            },
          ]),
        ),
      );
    }
    return found.get(name);
  }

  const numbersOf = (op, kind) => [
    ...new Set([...partsOf(op, kind).keys()].map((row) => rows.case[row])),
  ];
  const strategiesOf = (op, kind) =>
    [...new Set([...partsOf(op, kind).keys()].map((row) => rows.strategy[row]))].sort((a, b) =>
      strategies[a].name < strategies[b].name ? -1 : 1,
    );

  function xs(op, kind) {
    return ["strategy", ...filters.varying(numbersOf(op, kind), [])];
  }

  function defaults(op, kind) {
    const options = xs(op, kind);
    const x = options.includes(KINDS[kind].x) ? KINDS[kind].x : "strategy";
    return {
      x,
      y: KINDS[kind].share ? "share" : "time",
      strategy: String(
        run.ops[op].reference === null
          ? (strategiesOf(op, kind)[0] ?? 0)
          : data.numberOf(run.ops[op].reference),
      ),
    };
  }

  const fieldsOf = (op, kind, state) => filters.varying(numbersOf(op, kind), [state.x]);

  function settle(op, kind, state) {
    const options = xs(op, kind);
    if (!options.includes(state.x)) [state.x] = options;
    if (!["share", "time", "layer"].includes(state.y)) state.y = "time";
    const known = strategiesOf(op, kind);
    if (!known.includes(Number(state.strategy))) state.strategy = String(known[0] ?? 0);
    if (!["yes", "no"].includes(state.rest)) state.rest = "no";
    filters.settle(op, fieldsOf(op, kind, state), numbersOf(op, kind), state);
  }

  function controls(op, kind, state) {
    const names = strategiesOf(op, kind).map((number) => [String(number), strategies[number].name]);
    const whole = kind === "breakdown" ? "% of the measured time" : "% of a step";
    const shown =
      kind === "breakdown"
        ? [
            ["share", whole],
            ["time", "µs per call"],
          ]
        : [
            ["time", "µs per token and layer"],
            ["share", whole],
          ];
    return [
      { name: "y", label: "Show", options: shown },
      { name: "x", label: "A bar for each", options: xs(op, kind).map((x) => [x, x]) },
      ...(state.x === "strategy" ? [] : [{ name: "strategy", label: "Strategy", options: names }]),
      ...filters.controls(fieldsOf(op, kind, state), numbersOf(op, kind), state),
      ...(kind === "amortisation"
        ? [
            {
              name: "rest",
              label: "The rest of the model",
              options: [
                ["no", "left out"],
                ["yes", "shown"],
              ],
            },
          ]
        : []),
    ];
  }

  function bars(op, kind, state) {
    const fields = fieldsOf(op, kind, state);
    const all = [...partsOf(op, kind)].filter(
      ([row]) =>
        filters.matches(rows.case[row], fields, state) &&
        (state.x === "strategy" || rows.strategy[row] === Number(state.strategy)),
    );
    const bar = ([row, of]) => ({
      row,
      ...of,
      x:
        state.x === "strategy"
          ? strategies[rows.strategy[row]].name
          : data.value(state.x, rows.case[row]),
    });
    const order =
      state.x === "strategy"
        ? (a, b) => (a.x < b.x ? -1 : 1)
        : (a, b) =>
            cases.fields[state.x].values.indexOf(a.x) - cases.fields[state.x].values.indexOf(b.x);
    return all.map(bar).sort(order);
  }

  // What seconds of a row are multiplied with to be shown.
  function factor(kind, bar, state) {
    const { row } = bar;
    if (state.y === "share") return 100 / measured(kind, bar);
    return kind === "breakdown"
      ? US
      : US / (cases.batch[rows.case[row]] * cases.num_layers[rows.case[row]]);
  }

  const measured = (kind, bar) =>
    kind === "breakdown" ? rows.median_s[bar.row] : bar.parts.reduce((sum, part) => sum + part, 0);

  function unit(kind, state) {
    if (state.y === "share") return kind === "breakdown" ? "% of the measured time" : "% of a step";
    return kind === "breakdown" ? "µs per call" : "µs per token and layer";
  }

  // Launches that a fit can't tell from the call have no part of their own.
  const has = (kind, bar, place) => kind !== "breakdown" || bar.split || place !== 1;

  const areBoth = (kind, bar, place) => kind === "breakdown" && place === 0 && !bar.split;
  const BOTH = "the call and its launches";

  function partText(kind, bar, place) {
    return areBoth(kind, bar, place) ? BOTH : KINDS[kind].parts[place][1];
  }

  function partName(kind, bar, place) {
    return areBoth(kind, bar, place) ? "both" : KINDS[kind].parts[place][2];
  }

  // What the parts of the fit leave of what was measured, or say too much.
  function leftOver(bar) {
    const share = units.significant(Math.abs((100 * bar.rest) / rows.median_s[bar.row]));
    return bar.rest < 0 ? `the fit says ${share} % more` : `the fit leaves ${share} % of that`;
  }

  function view(op, kind, state, look) {
    const fields = fieldsOf(op, kind, state);
    const there = bars(op, kind, state);
    const shownParts = KINDS[kind].parts
      .map((part, place) => [part, place])
      .filter(([[name]]) => name !== "rest_s" || state.rest === "yes");
    const text = (bar) => (state.x === "strategy" ? bar.x : units.field(bar.x));
    const lying = state.x === "strategy";
    const short = (bar) => units.plain(lying ? bar.x.slice(bar.x.indexOf(".") + 1) : text(bar));
    // Along the bars stands the value, across them what each is of.
    const placed = (across, along) =>
      lying ? { x: along, y: across, orientation: "h" } : { x: across, y: along };
    const base = there.map(() => 0);
    const traces = [];
    const lines = shownParts.map(([[, label], place]) => {
      const heights = there.map((bar) => bar.parts[place] * factor(kind, bar, state));
      const told = there.map((bar, i) => [
        text(bar),
        `${partText(kind, bar, place)}: ${value(heights[i], kind, bar, place, state)}`,
        ...(kind === "breakdown" || state.y === "share"
          ? []
          : [`${units.seconds(bar.parts[place])} a step`]),
        ...(kind === "breakdown"
          ? [`measured ${units.seconds(rows.median_s[bar.row])}`, leftOver(bar)]
          : []),
      ]);
      traces.push({
        type: "bar",
        ...placed(there.map(short), heights),
        name: label,
        hoverinfo: "text",
        textposition: "none",
        marker: { color: there.map((bar) => look.part(partName(kind, bar, place))) },
        hovertext: told.map((parts) => parts.map(units.plain).join("<br>")),
      });
      const line = {
        name: label,
        points: there
          .map((bar, i) => {
            base[i] += heights[i];
            return {
              curve: traces.length - 1,
              point: i,
              x: i,
              y: base[i],
              text: told[i].join("; "),
            };
          })
          .filter(({ point }) => has(kind, there[point], place)),
      };
      return line;
    });
    if (kind === "breakdown")
      traces.push(...markers(there, there.map(short), kind, state, look, placed));
    const named = new Map();
    for (const [, place] of shownParts) {
      for (const bar of there.filter((each) => has(kind, each, place))) {
        named.set(partText(kind, bar, place), look.part(partName(kind, bar, place)));
      }
    }
    const swatches = [...named].map(([label, colour]) => ({
      text: label,
      drawing: kv.element("span", { class: "key-square", style: `background: ${colour}` }),
    }));
    if (kind === "breakdown")
      swatches.push({
        text: "measured",
        drawing: kv.element("span", { class: lying ? "key-line upright" : "key-line" }),
      });
    return {
      traces,
      lines: lying ? beside(there, lines) : lines,
      height: lying ? Math.max(200, 110 + (look.narrow ? 44 : 34) * there.length) : undefined,
      swatches,
      strategies: [],
      title:
        kind === "breakdown"
          ? `${op}: what a call's time is made of, by the fit`
          : "step: what prepare, write and attend take of each token and layer",
      layout: {
        barmode: "stack",
        bargap: 0.35,
        ...(lying ? lyingAxes : standingAxes)(there.map(short), kind, state, look),
      },
      table: table(there, kind, state, text, shownParts),
      note: note(op, kind, state, fields),
      why: there.length ? "" : nothing(op, kind, state, fields),
    };
  }

  function standingAxes(names, kind, state, look) {
    return {
      xaxis: {
        type: "category",
        tickangle: names.length > (look.narrow ? 4 : 10) ? -35 : 0,
        title: { text: units.plain(state.x) },
      },
      yaxis: { title: { text: unit(kind, state) }, rangemode: "tozero" },
    };
  }

  function lyingAxes(names, kind, state, look) {
    const most = look.narrow ? MOST_NARROW : MOST_WIDE;
    return {
      // Above is room for what the keys do: it hides no bar.
      margin: { l: 44, r: 12, t: look.narrow ? 42 : 24, b: 48 },
      xaxis: {
        title: { text: unit(kind, state) },
        rangemode: "tozero",
        tickformat: ",~r",
        nticks: look.narrow ? 4 : 10,
      },
      yaxis: {
        type: "category",
        // The first above, as one reads.
        categoryorder: "array",
        categoryarray: [...names].reverse(),
        tickvals: names,
        ticktext: names.map((name) => labelOf(name, most)),
        showgrid: false,
      },
    };
  }

  // A name in lines of so many characters, broken within a pair, "a+b"; cut where it is longer still.
  function labelOf(name, most) {
    if (name.length <= most) return name;
    return name
      .split(/(?<=\w\+)(?=\w)/)
      .map((part) => (part.length > most ? `${part.slice(0, most - 1)}…` : part))
      .join("<br>");
  }

  // To walk bars that lie: along a bar its parts, up and down the bars above and below.
  function beside(there, lines) {
    return there.map((bar, i) => ({
      name: bar.x,
      points: lines.flatMap(({ points }, part) =>
        points.filter(({ point }) => point === i).map((point) => ({ ...point, x: part, y: -i })),
      ),
    }));
  }

  function value(height, kind, bar, place, state) {
    const seconds = units.seconds(bar.parts[place]);
    return state.y === "share"
      ? `${units.significant(height)} % (${seconds})`
      : kind === "breakdown"
        ? seconds
        : `${units.seconds(height / US)} per token and layer`;
  }

  // A call as it was measured: where the parts don't reach it, or go beyond, the fit is off.
  function markers(there, names, kind, state, look, placed) {
    const measuredOf = (bar) => rows.median_s[bar.row] * factor(kind, bar, state);
    const { x, y, orientation } = placed(names, there.map(measuredOf));
    const mark = (width, color) => ({
      type: "scatter",
      mode: "markers",
      hoverinfo: "skip",
      x,
      y,
      marker: {
        symbol: orientation === "h" ? "line-ns" : "line-ew",
        size: look.narrow || orientation === "h" ? 12 : 22,
        line: { width, color },
      },
    });
    // Edged, to be seen on every part.
    return [mark(5, look.paper), mark(2.5, look.ink)];
  }

  function table(there, kind, state, text, shownParts) {
    const header = [
      state.x,
      ...shownParts.map(([[, label]]) => label),
      ...(kind === "breakdown" ? ["measured", "left over"] : []),
    ];
    return {
      header,
      rows: there.map((bar) => [
        text(bar),
        ...shownParts.map(([, place]) => {
          if (!has(kind, bar, place)) return "—";
          const shown = bar.parts[place] * factor(kind, bar, state);
          return state.y === "share"
            ? `${units.significant(shown)} %`
            : units.seconds(shown / US);
        }),
        ...(kind === "breakdown"
          ? [units.seconds(rows.median_s[bar.row]), units.seconds(bar.rest)]
          : []),
      ]),
    };
  }

  function note(op, kind, state, fields) {
    const parts = [`${filters.setting(op, fields, numbersOf(op, kind), [state.x], state)}.`];
    if (kind === "breakdown") {
      const refused = Object.keys(run.ops[op].without_fit);
      parts.push("Where a fit can't tell a call from its launches, it has one part of both.");
      if (refused.length) parts.push(`Without a fit: ${refused.join(", ")}.`);
    } else {
      parts.push("Median times; prepare, paid once a step, is spread over its layers.");
    }
    return parts.join(" ");
  }

  function nothing(op, kind, state, fields) {
    const numbers = numbersOf(op, kind);
    if (numbers.length) {
      const who = state.x === "strategy" ? "" : ` of ${strategies[Number(state.strategy)].name}`;
      return filters.why(fields, numbers, state).replace("was timed", `was timed${who}`);
    }
    if (kind === "amortisation") return "No step has prepare, write and attend timed apart.";
    const reasons = Object.entries(run.ops[op].without_fit).map(
      ([name, reason]) => `${name}: ${reason}`,
    );
    return `No strategy has a fit. ${reasons.join("; ") || "Nothing was timed."}`;
  }

  return { defaults, settle, controls, view };
})();
