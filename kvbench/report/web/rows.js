"use strict";
// Every row of the run: filtered, sorted and shown a page at a time.

kv.rows = (() => {
  const { element, run, data, units } = kv;
  const { rows, cases, strategies } = run;
  const PAGE = 100;
  const COUNT = rows.case.length;

  const words = (column) =>
    [...new Set(rows[column].of)].filter((n) => n >= 0).map((n) => rows[column].values[n]);
  const known = (column, say) => (row) => (column[row] === null ? null : say(column[row]));
  const seconds = (column) => known(column, units.seconds);

  // What is said of a row, what it is sorted by, and whether it is a number. What all rows have in
  // common is not shown; a row that was not timed has the reason where its times would be.
  function columns() {
    const word = (name, label = name) => ({
      label,
      text: (row) => data.word(name, row),
      key: (row) => data.word(name, row),
    });
    const number = (label, text, key) => ({ label, text, key, number: true });
    const timed = (label, column) => ({
      ...number(label, seconds(column), (row) => column[row]),
      time: true,
    });
    const fields = Object.keys(cases.fields).map((name) => {
      const numeric = cases.fields[name].values.every((value) => typeof value === "number");
      return {
        label: name,
        number: numeric,
        text: (row) => units.field(data.value(name, rows.case[row])),
        key: (row) => cases.fields[name].of[rows.case[row]],
      };
    });
    const first = fields.filter(({ label }) => ["seq_len", "batch"].includes(label));
    const { median_s, low_s, high_s, launches, copy_share, samples, resolved } = rows;
    return [
      {
        label: "strategy",
        text: (row) => data.strategy(row).name,
        key: (row) => data.strategy(row).name,
        kept: true,
      },
      ...["phase", "clock", "cache"].map((name) => word(name)),
      ...first,
      word("status"),
      timed("median", median_s),
      timed("low", low_s),
      timed("high", high_s),
      number("launches", known(launches, units.field), (row) => launches[row]),
      number(
        "of the copy",
        known(copy_share, (share) => `${units.significant(100 * share)} %`),
        (row) => copy_share[row],
      ),
      ...fields.filter((field) => !first.includes(field)),
      number("samples", known(samples, String), (row) => samples[row]),
      word("stopped_by", "ended by"),
      {
        label: "resolved",
        text: known(resolved, (flag) => (flag ? "yes" : "no")),
        key: (row) => resolved[row],
      },
    ];
  }

  function isShown({ kept, time, key }) {
    return kept || time || rows.case.some((_, row) => key(row) !== key(0));
  }

  // All that is searched of a row, in small letters: what it says, and fields as commands have them.
  function searchable(all) {
    let texts = null;
    const fields = [...Object.keys(cases.fields), ...Object.keys(run.constant)];
    const said = (row) => [
      data.opOf(row),
      ...all.map((column) => column.text(row) ?? ""),
      ...fields.map((name) => `${name}=${data.value(name, rows.case[row])}`),
      data.word("reason", row) ?? "",
      data.word("repro", row),
    ];
    return (row) => {
      texts ??= rows.case.map((_, n) => said(n).join("\n").toLowerCase());
      return texts[row];
    };
  }

  // Each word is looked for by itself, wherever in a row it is.
  const wordsOf = (query) =>
    query
      .toLowerCase()
      .split(/\s+/)
      .map((each) => each.replace(/,$/, ""))
      .filter(Boolean);

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = element("textarea", { class: "visually-hidden", "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  function mount(box) {
    box.querySelector(".unscripted").remove();
    const all = columns();
    const shown = all.filter(isShown);
    const times = shown.filter(({ time }) => time);
    const search = searchable(all);
    const opened = new Set();
    const id = (name) => `${box.id}-${name}`;
    const order = { column: null, descending: false };
    let page = 0;
    let found = [];

    const text = element("input", {
      id: id("text"),
      type: "search",
      placeholder: "write.loop, seq_len=4096 …",
      autocomplete: "off",
      spellcheck: "false",
    });
    text.addEventListener(
      "input",
      kv.debounced(() => refilter()),
    );
    const select = (name, values) => {
      const input = element(
        "select",
        { id: id(name), onchange: () => refilter() },
        element("option", { value: "" }, "all"),
        ...values.map((value) => element("option", { value }, value)),
      );
      return input;
    };
    const choices = {
      op: [
        select(
          "op",
          data.OPS.filter((op) => run.ops[op]),
        ),
        (row) => data.opOf(row),
      ],
      strategy: [
        select("strategy", strategies.map((s) => s.name).sort()),
        (row) => data.strategy(row).name,
      ],
      status: [select("status", words("status")), (row) => data.word("status", row)],
      ...(words("clock").length > 1
        ? { clock: [select("clock", words("clock")), (row) => data.word("clock", row)] }
        : {}),
    };
    const control = (name, label, input) =>
      element("div", { class: "control" }, element("label", { for: id(name) }, label), input);
    const controls = element(
      "div",
      { class: "control-grid", role: "group", "aria-label": "Which rows" },
      control("text", "Text", text),
      ...Object.entries(choices).map(([name, [input]]) =>
        control(name, name[0].toUpperCase() + name.slice(1), input),
      ),
    );
    const status = element("p", { class: "note", role: "status" });
    const said = element("p", { class: "visually-hidden", "aria-live": "polite" });
    const heads = shown.map((column) =>
      element("th", { scope: "col", class: column.number ? "number" : null }, column.label),
    );
    const [first, ...others] = heads;
    const header = element("tr", {}, first, element("th", { scope: "col" }, "command"), ...others);
    const body = element("tbody");
    heads.forEach((head, column) =>
      kv.tables.button(head, () => {
        order.descending = kv.tables.turn(header, head.cellIndex);
        order.column = shown[column];
        resort();
      }),
    );
    const table = element(
      "table",
      { class: "all-rows", "aria-label": "Rows of the run" },
      element("thead", {}, header),
      body,
    );
    const region = element(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Rows of the run" },
      table,
    );
    const step = (by) => () => {
      page += by;
      show();
    };
    const back = element("button", { type: "button", onclick: step(-1) }, "Previous");
    const on = element("button", { type: "button", onclick: step(1) }, "Next");
    const pager = element(
      "div",
      { class: "buttons", role: "group", "aria-label": "Pages" },
      back,
      on,
    );
    box.append(controls, status, region, pager, said);

    function refilter() {
      const needles = wordsOf(text.value);
      const wanted = Object.values(choices).filter(([input]) => input.value !== "");
      found = [];
      for (let row = 0; row < COUNT; row += 1) {
        if (
          wanted.every(([input, of]) => of(row) === input.value) &&
          needles.every((needle) => search(row).includes(needle))
        ) {
          found.push(row);
        }
      }
      resort();
    }

    // As they were run, those that were timed first; or by a column.
    function resort() {
      if (order.column === null) found.sort((a, b) => data.ok(b) - data.ok(a) || a - b);
      else {
        const { key } = order.column;
        const sign = order.descending ? -1 : 1;
        found.sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === null || y === null) return (x === null) - (y === null) || a - b;
          return x === y ? a - b : x < y ? -sign : sign;
        });
      }
      page = 0;
      show();
    }

    function show() {
      const first = page * PAGE;
      const here = found.slice(first, first + PAGE);
      body.replaceChildren(...here.flatMap(line));
      const of = found.length === COUNT ? "" : ` of ${units.field(COUNT)}`;
      status.textContent = found.length
        ? `Rows ${units.field(first + 1)} to ${units.field(first + here.length)} of ${units.field(found.length)}${of ? ` found${of}` : ""}.`
        : `None of ${units.field(COUNT)} rows has all of that.`;
      back.disabled = page === 0;
      on.disabled = first + PAGE >= found.length;
    }

    // A row's line, and the one below it with its command, which is opened by a button.
    function line(row) {
      const [name, ...others] = shown.flatMap((column) => {
        const reason = data.word("reason", row);
        if (column.time && reason !== null)
          return column === times[0]
            ? [element("td", { colspan: times.length, class: "reason" }, reason)]
            : [];
        const kind = column.number ? "number" : column.kept ? "name" : null;
        return [element("td", { class: kind }, ...kv.breakable(column.text(row) ?? "—"))];
      });
      const below = element(
        "tr",
        { class: "below", hidden: !opened.has(row), id: id(`command-${row}`) },
        element(
          "td",
          { colspan: shown.length + 1 },
          element("code", {}, data.word("repro", row)),
        ),
      );
      return [
        element("tr", {}, name, element("td", {}, buttons(row, below)), ...others),
        below,
      ];
    }

    function buttons(row, below) {
      const command = data.word("repro", row);
      const of = `of this row: ${data.strategy(row).name}`;
      const copying = element(
        "button",
        {
          type: "button",
          "aria-label": `Copy command ${of}`,
          onclick: async () => {
            const done = await copy(command);
            said.textContent = "";
            copying.textContent = done ? "Copied" : "Not copied";
            said.textContent = done ? "Copied" : "Not copied: the browser does not let it be";
            setTimeout(() => {
              copying.textContent = "Copy command";
            }, 1500);
          },
        },
        "Copy command",
      );
      const opening = element(
        "button",
        {
          type: "button",
          "aria-label": `Show command ${of}`,
          "aria-expanded": String(!below.hidden),
          "aria-controls": below.id,
          onclick: () => {
            below.hidden = !below.hidden;
            opening.setAttribute("aria-expanded", String(!below.hidden));
            if (below.hidden) opened.delete(row);
            else opened.add(row);
          },
        },
        "Show",
      );
      return element("div", { class: "command" }, copying, opening);
    }

    refilter();
  }

  return { mount };
})();
