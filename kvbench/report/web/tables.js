"use strict";
// Tables whose rows are sorted by buttons in the header.

kv.tables = (() => {
  const { element, units } = kv;

  // Whether a column has numbers alone, as report.tables has it.
  function isNumeric(cells) {
    return cells.length > 0 && cells.every((text) => /^\d/.test(text) || text === "—");
  }

  // The order of two cells: numbers as such, what is missing last.
  function compare(a, b, descending) {
    const [x, y] = [units.sortable(a), units.sortable(b)];
    if (a === "—" || b === "—") return (a === "—") - (b === "—");
    const order = x !== null && y !== null ? x - y : a.localeCompare(b, "en", { numeric: true });
    return descending ? -order : order;
  }

  // A blank cell at the head of a row means what stands above it; sorted, it has to say so.
  function fillDown(body) {
    let above = [];
    for (const row of body.rows) {
      const cells = [...row.cells];
      const filled = cells.findIndex((cell) => cell.textContent !== "");
      for (let i = 0; i < filled; i += 1) cells[i].textContent = above[i] ?? "";
      above = cells.map((cell) => cell.textContent);
    }
  }

  // Marks a header's column as sorted by; says whether it is to be descending.
  function turn(header, column) {
    const heads = [...header.cells];
    const descending = heads[column].getAttribute("aria-sort") === "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
    return descending;
  }

  function sort(table, column) {
    const [body] = table.tBodies;
    fillDown(body);
    const descending = turn(table.tHead.rows[0], column);
    const text = (row) => row.cells[column].textContent;
    body.append(...[...body.rows].sort((a, b) => compare(text(a), text(b), descending)));
  }

  // Puts a button around what a header cell says.
  function button(head, onclick) {
    const made = element("button", { type: "button", onclick });
    made.append(...head.childNodes);
    head.append(made);
  }

  function upgrade(table) {
    if (!table.tBodies[0] || table.tBodies[0].rows.length < 2) return;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (head.textContent.trim()) button(head, () => sort(table, column));
    });
  }

  function make({ caption, header, rows }) {
    const numeric = header.map((_, column) => isNumeric(rows.map((row) => row[column])));
    const cell = (text, column) =>
      element("td", { class: numeric[column] ? "number" : null }, ...kv.breakable(text));
    const table = element(
      "table",
      { "aria-label": caption },
      element(
        "thead",
        {},
        element(
          "tr",
          {},
          ...header.map((text, column) =>
            element("th", { scope: "col", class: numeric[column] ? "number" : null }, text),
          ),
        ),
      ),
      element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map(cell)))),
    );
    upgrade(table);
    return element(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": `${caption}: values` },
      table,
    );
  }

  return { make, upgrade, turn, button };
})();
