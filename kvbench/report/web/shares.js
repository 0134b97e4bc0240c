"use strict";
// What the gather is of an attention, beside attentions that read blocks in place.

kv.shares = (() => {
  const { run, data, units, filters } = kv;
  const { rows, cases, strategies, shares } = run;

  const places = new Map(shares.row.map((row, i) => [row, i]));
  const clocks = [...new Set(shares.row.map((row) => data.word("clock", row)))];
  const reference = (row) => shares.reference.values[shares.reference.of[places.get(row)]];
  const isReference = (row) => data.strategy(row).name === reference(row);

  const rowsBy = (state) => shares.row.filter((row) => data.word("clock", row) === state.clock);
  const numbersBy = (state) => [...new Set(rowsBy(state).map((row) => rows.case[row]))];

  const xs = (state) => filters.varying(numbersBy(state), []);
  const fieldsOf = (state) => filters.varying(numbersBy(state), [state.x]);

  const defaults = () => ({ x: "seq_len", clock: "wall" });

  function settle(op, kind, state) {
    if (!clocks.includes(state.clock)) state.clock = clocks[0] ?? "wall";
    const options = xs(state);
    if (!options.includes(state.x))
      state.x = options.includes("seq_len") ? "seq_len" : (options[0] ?? "seq_len");
    filters.settle(op, fieldsOf(state), numbersBy(state), state);
  }

  function controls(op, kind, state) {
    return [
      { name: "x", label: "over", options: xs(state).map((x) => [x, x]) },
      { name: "clock", label: "Clock", options: clocks.map((clock) => [clock, clock]) },
      ...filters.controls(fieldsOf(state), numbersBy(state), state),
    ];
  }

  function percent(row, name) {
    const [middle, low, high] = ["", "_low", "_high"].map(
      (end) => 100 * shares[name + end][places.get(row)],
    );
    return { middle, low, high };
  }

  const words = ({ middle, low, high }) =>
    `${units.significant(middle)} % (${units.significant(low)} to ${units.significant(high)})`;

  function view(op, kind, state, look) {
    const fields = fieldsOf(state);
    const here = rowsBy(state).filter((row) => filters.matches(rows.case[row], fields, state));
    const x = (row) => data.value(state.x, rows.case[row]);
    const values =
      state.x in cases.fields ? cases.fields[state.x].values : [data.value(state.x, 0)];
    const at = [...new Set(here.map(x))].sort((a, b) => values.indexOf(a) - values.indexOf(b));
    const text = (row) => units.plain(units.field(x(row)));
    const traces = [];
    const lines = [];
    const firsts = here.filter(isReference).sort((a, b) => at.indexOf(x(a)) - at.indexOf(x(b)));
    const push = (name, trace, own, height, told) => {
      traces.push({
        type: "bar",
        x: own.map(text),
        hoverinfo: "text",
        textposition: "none",
        hovertext: own.map((row) => told(row).map(units.plain).join("<br>")),
        ...trace,
      });
      lines.push({
        name,
        points: own.map((row, i) => ({
          curve: traces.length - 1,
          point: i,
          x: at.indexOf(x(row)),
          y: height(row),
          text: told(row).join("; "),
        })),
      });
    };
    const toldShare = (row) => [
      `${data.strategy(row).name}, ${state.x} ${units.field(x(row))}: 100 %, ${units.seconds(rows.median_s[row])}`,
      `its gather: ${words(percent(row, "share"))}`,
    ];
    if (firsts.length) {
      const gather = firsts.map((row) => percent(row, "share").middle);
      push(
        "gather",
        {
          y: gather,
          offsetgroup: "0",
          marker: { color: look.part("gather") },
        },
        firsts,
        (row) => percent(row, "share").middle,
        toldShare,
      );
      push(
        "attention",
        {
          y: gather.map((share) => 100 - share),
          base: gather,
          offsetgroup: "0",
          marker: { color: look.part("attention") },
        },
        firsts,
        () => 100,
        toldShare,
      );
    }
    const others = [
      ...new Set(here.filter((row) => !isReference(row)).map((row) => rows.strategy[row])),
    ].sort((a, b) => (strategies[a].name < strategies[b].name ? -1 : 1));
    for (const number of others) {
      if (look.hidden.has(number)) continue;
      const own = here
        .filter((row) => rows.strategy[row] === number && !isReference(row))
        .sort((a, b) => at.indexOf(x(a)) - at.indexOf(x(b)));
      const ratios = own.map((row) => percent(row, "ratio"));
      push(
        strategies[number].name,
        {
          y: ratios.map((r) => r.middle),
          offsetgroup: String(number + 1),
          marker: { color: look.colour(strategies[number]) },
          error_y: {
            type: "data",
            symmetric: false,
            thickness: 1.2,
            width: 3,
            color: "#808080", // seen on black and on white
            array: ratios.map((r) => r.high - r.middle),
            arrayminus: ratios.map((r) => r.middle - r.low),
          },
        },
        own,
        (row) => percent(row, "ratio").middle,
        (row) => [
          `${strategies[number].name}, ${state.x} ${units.field(x(row))}: ${words(percent(row, "ratio"))} of ${reference(row)}`,
          units.secondsInterval(rows.median_s[row], rows.low_s[row], rows.high_s[row]),
        ],
      );
    }
    const square = (style) => kv.element("span", { class: "key-square", style });
    return {
      traces,
      lines,
      strategies: others,
      title: "attend: gather + attention, and reading blocks in place",
      swatches: [
        { text: "gather", drawing: square(`background: ${look.part("gather")}`) },
        {
          text: "attention over the copies",
          drawing: square(`background: ${look.part("attention")}`),
        },
      ],
      layout: {
        barmode: "group",
        bargap: 0.2,
        xaxis: {
          type: "category",
          categoryorder: "array",
          categoryarray: at.map((v) => units.plain(units.field(v))),
          title: { text: units.plain(state.x === "seq_len" ? "seq_len (context)" : state.x) },
        },
        yaxis: { title: { text: "time, % of gather + attention" }, rangemode: "tozero" },
      },
      table: {
        header: [state.x, "strategy", "time", "% of gather + attention", "its gather"],
        rows: here.map((row) => [
          units.field(x(row)),
          data.strategy(row).name,
          units.secondsInterval(rows.median_s[row], rows.low_s[row], rows.high_s[row]),
          words(percent(row, "ratio")),
          isReference(row) ? words(percent(row, "share")) : "—",
        ]),
      },
      note:
        `${filters.setting(op, fields, numbersBy(state), [state.x], state)}. By the ${state.clock} clock. 100 %: the fastest attention that gathers, ` +
        "whose gather is timed by itself as well. Median ratio within rounds with its 95 % interval.",
      why: here.length
        ? ""
        : shares.row.length
          ? filters.why(fields, numbersBy(state), state)
          : "No attention was timed with its gather apart.",
    };
  }

  // Those that read blocks in place can be hidden.
  const inPlace = () => [
    ...new Set(shares.row.filter((row) => !isReference(row)).map((row) => rows.strategy[row])),
  ];

  return { defaults, settle, controls, view, strategies: inPlace };
})();
