"use strict";
// One value for each case field that varies, so that a line of a chart has one case at each place.

kv.filters = (() => {
  const { cases, constant, ops } = kv.run;

  // The fields that these cases differ in, but for the free ones.
  function varying(numbers, free) {
    return Object.entries(cases.fields)
      .filter(
        ([name, { of }]) => !free.includes(name) && numbers.some((n) => of[n] !== of[numbers[0]]),
      )
      .map(([name]) => name);
  }

  const key = (field) => `f.${field}`;

  function matches(number, fields, state, but = null) {
    return fields.every(
      (field) => field === but || cases.fields[field].of[number] === Number(state[key(field)]),
    );
  }

  // Which values of a field some of these cases have, and how many of them.
  function counts(field, numbers) {
    const found = new Map();
    for (const number of numbers) {
      const place = cases.fields[field].of[number];
      found.set(place, (found.get(place) ?? 0) + 1);
    }
    return found;
  }

  const USUAL = { seq_len: 512 }; // the size that the teaching series makes its claims for

  // The op's main setting first; else what most cases have, of these the usual or the middle one.
  function preferred(op, field, numbers) {
    const found = counts(field, numbers);
    const main = cases.fields[field].values.indexOf(ops[op].setting[field]);
    if (found.has(main)) return main;
    const most = Math.max(...found.values());
    const best = [...found].filter(([, count]) => count === most).map(([place]) => place);
    best.sort((a, b) => a - b);
    const usual = cases.fields[field].values.indexOf(USUAL[field]);
    if (best.includes(usual)) return usual;
    return best[Math.floor(best.length / 2)];
  }

  // Gives every field a value that it can have. What was chosen stays, though nothing has it.
  function settle(op, fields, numbers, state) {
    let left = numbers;
    for (const field of fields) {
      const values = cases.fields[field].values;
      const chosen = state[key(field)];
      const known = chosen !== undefined && /^\d+$/.test(chosen) && Number(chosen) < values.length;
      if (!known) state[key(field)] = String(preferred(op, field, left.length ? left : numbers));
      left = left.filter((number) => matches(number, [field], state));
    }
  }

  // A select for each field; values that have nothing beside the others chosen say so.
  function controls(fields, numbers, state) {
    return fields.map((field) => {
      const all = counts(field, numbers);
      const here = counts(
        field,
        numbers.filter((n) => matches(n, fields, state, field)),
      );
      const options = [...all.keys()]
        .sort((a, b) => a - b)
        .map((place) => {
          const text = kv.units.field(cases.fields[field].values[place]);
          return [String(place), here.has(place) ? text : `${text} (nothing)`];
        });
      return { name: key(field), label: field, options, filter: true };
    });
  }

  // Why no case has what was chosen: which change would give some.
  function why(fields, numbers, state) {
    const chosen = fields.map((field) => said(field, state)).join(", ");
    const ways = fields.flatMap((field) => {
      const here = counts(
        field,
        numbers.filter((n) => matches(n, fields, state, field)),
      );
      const words = [...here.keys()]
        .sort((a, b) => a - b)
        .map((place) => kv.units.field(cases.fields[field].values[place]));
      return words.length ? [`${field} ${words.join(" or ")}`] : [];
    });
    const hint = ways.length ? ` With ${ways.join(", or with ")} there is something.` : "";
    return `Nothing was timed with ${chosen}.${hint}`;
  }

  function said(field, state) {
    return `${field} ${kv.units.field(cases.fields[field].values[Number(state[key(field)])])}`;
  }

  // What all that is shown shares, in words: what was chosen, and what all of these cases have.
  // What an op knows nothing of, and a default that goes without saying, are left out.
  function setting(op, fields, numbers, free, state) {
    const { silent } = ops[op];
    const words = fields.map((field) => said(field, state));
    for (const [name, { values, of, usual }] of Object.entries(cases.fields)) {
      const shown = fields.includes(name) || free.includes(name) || silent.includes(name);
      const value = numbers.length ? values[of[numbers[0]]] : usual;
      if (!shown && value !== usual) words.push(`${name} ${kv.units.field(value)}`);
    }
    for (const [name, value] of Object.entries(constant)) {
      if (!silent.includes(name)) words.push(`${name} ${kv.units.field(value)}`);
    }
    return words.join(", ");
  }

  return { varying, matches, settle, controls, why, setting, key };
})();
