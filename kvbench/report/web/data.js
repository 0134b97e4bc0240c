"use strict";
// The run, as report/payload.py writes it, and how its cases and rows are looked up.

const kv = {};

kv.run = JSON.parse(document.getElementById("run-data").textContent);

kv.data = (() => {
  const { cases, rows, strategies } = kv.run;
  const OPS = ["write", "read", "attend", "index", "step"];

  // A field's value of a case. What all cases share has no column.
  function value(field, number) {
    if (field === "tokens") return cases.tokens[number];
    const column = cases.fields[field];
    return column ? column.values[column.of[number]] : kv.run.constant[field];
  }

  // A word of a row's column, null where it has none.
  function word(column, row) {
    const place = rows[column].of[row];
    return place < 0 ? null : rows[column].values[place];
  }

  const byOp = new Map(OPS.map((op) => [op, []]));
  rows.case.forEach((number, row) => byOp.get(OPS[cases.op[number]]).push(row));

  const numbers = new Map(strategies.map((strategy, number) => [strategy.name, number]));

  // Estimates by row: { value, low, high } of the columns named alike.
  function byRow(columns, name) {
    const found = new Map();
    if (columns === null) return found;
    columns.row.forEach((row, i) => {
      const middle = columns[name][i];
      if (middle === null) return;
      found.set(row, {
        value: middle,
        low: columns[`${name}_low`][i] ?? middle,
        high: columns[`${name}_high`][i] ?? middle,
      });
    });
    return found;
  }

  return {
    OPS,
    value,
    word,
    byRow,
    rowsOf: (op) => byOp.get(op),
    opOf: (row) => OPS[cases.op[rows.case[row]]],
    strategy: (row) => strategies[rows.strategy[row]],
    numberOf: (name) => numbers.get(name),
    ok: (row) => rows.median_s[row] !== null,
  };
})();
