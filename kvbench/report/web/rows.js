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

  // What is shown of a row, what it is sorted by, and whether it is a number.
  function columns() {
    const word = (name, label = name) => ({
      label,
      text: (row) => data.word(name, row),
      key: (row) => data.word(name, row),
    });
    const number = (label, text, key) => ({ label, text, key, number: true });
    const varies = (name) => words(name).length > 1;
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
      },
      ...["phase", "clock", "cache"].filter(varies).map((name) => word(name)),
      ...first,
      word("status"),
      number("median", seconds(median_s), (row) => median_s[row]),
      number("low", seconds(low_s), (row) => low_s[row]),
      number("high", seconds(high_s), (row) => high_s[row]),
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
      { ...word("reason"), wide: true },
    ];
  }

  // All that is searched of a row, in small letters.
  function searchable(shown) {
    let texts = null;
    return (row) => {
      texts ??= Array.from({ length: COUNT }, (_, n) =>
        [data.opOf(n), ...shown.map((column) => column.text(n) ?? ""), data.word("repro", n)]
          .join("\n")
          .toLowerCase(),
      );
      return texts[row];
    };
  }

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
    const shown = columns();
    const search = searchable(shown);
    const id = (name) => `${box.id}-${name}`;
    const order = { column: null, descending: false };
    let page = 0;
    let found = [];

    const text = element("input", {
      id: id("text"),
      type: "search",
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
    const header = element(
      "tr",
      {},
      ...shown.map((column) =>
        element("th", { scope: "col", class: column.number ? "number" : null }, column.label),
      ),
      element("th", { scope: "col" }, "command"),
    );
    const body = element("tbody");
    [...header.cells].slice(0, -1).forEach((head, column) =>
      kv.tables.button(head, () => {
        order.descending = kv.tables.turn(header, column);
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
      const needle = text.value.trim().toLowerCase();
      const wanted = Object.values(choices).filter(([input]) => input.value !== "");
      found = [];
      for (let row = 0; row < COUNT; row += 1) {
        if (
          wanted.every(([input, of]) => of(row) === input.value) &&
          (!needle || search(row).includes(needle))
        ) {
          found.push(row);
        }
      }
      resort();
    }

    function resort() {
      if (order.column !== null) {
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
      body.replaceChildren(...here.map(line));
      const of = found.length === COUNT ? "" : ` of ${units.field(COUNT)}`;
      status.textContent = found.length
        ? `Rows ${units.field(first + 1)} to ${units.field(first + here.length)} of ${units.field(found.length)}${of ? ` found${of}` : ""}.`
        : `None of ${units.field(COUNT)} rows has all of that.`;
      back.disabled = page === 0;
      on.disabled = first + PAGE >= found.length;
    }

    function line(row) {
      const cells = shown.map((column) => {
        const words = column.text(row);
        const kind = column.number ? "number" : column.wide ? "wide" : null;
        return element("td", { class: kind }, words ?? "—");
      });
      const command = data.word("repro", row);
      const button = element(
        "button",
        {
          type: "button",
          "aria-label": `Copy the command of this row: ${data.strategy(row).name}`,
          onclick: async () => {
            const done = await copy(command);
            said.textContent = "";
            button.textContent = done ? "Copied" : "Not copied";
            said.textContent = done ? "Copied" : "Not copied: the browser does not let it be";
            setTimeout(() => {
              button.textContent = "Copy";
            }, 1500);
          },
        },
        "Copy",
      );
      return element(
        "tr",
        {},
        ...cells,
        element("td", { class: "command" }, button, element("code", {}, command)),
      );
    }

    refilter();
  }

  return { mount };
})();
