"use strict";
// The page's counterpart of units.py: the only place here that scales seconds and bytes.

kv.units = (() => {
  const US = 1e6; // microseconds of a second
  const GB = 1e-9; // gigabytes of a byte
  const TIMES = [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "µs"],
    [1e-9, "ns"],
  ];
  const BYTES = [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
    [1, "B"],
  ];
  const RATES = [
    [1e9, "GB/s"],
    [1e6, "MB/s"],
    [1e3, "kB/s"],
    [1, "B/s"],
  ];

  // To so many significant digits, never in scientific notation.
  function significant(value, digits = 3) {
    const text = value.toPrecision(digits);
    const parts = /^(-?)(\d)(?:\.(\d+))?e([+-]\d+)$/.exec(text);
    if (parts === null) return text;
    const [, sign, first, rest = "", exponent] = parts;
    const all = first + rest;
    const power = Number(exponent);
    if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${all}`;
    return sign + all.padEnd(power + 1, "0");
  }

  // The unit that suits a value as it is shown: what is rounded to 1000 µs is 1.00 ms.
  function scaled(steps, value) {
    const shown = (scale) => Number(significant(Math.abs(value) / scale));
    return steps.find(([scale]) => shown(scale) >= 1) ?? steps.at(-1);
  }

  function seconds(value) {
    if (value === 0) return "0 s";
    const [scale, unit] = scaled(TIMES, value);
    return `${significant(value / scale)} ${unit}`;
  }

  function secondsInterval(value, low, high) {
    const [scale, unit] = scaled(TIMES, Math.max(Math.abs(value), Math.abs(high)));
    const [a, b, c] = [value, low, high].map((t) => (t === 0 ? "0" : significant(t / scale)));
    return `${a} (${b} to ${c}) ${unit}`;
  }

  function bytes(value) {
    const [scale, unit] = scaled(BYTES, value);
    return unit === "B" ? `${value.toFixed(0)} B` : `${significant(value / scale)} ${unit}`;
  }

  function bandwidth(value) {
    const [scale, unit] = scaled(RATES, value);
    return `${significant(value / scale)} ${unit}`;
  }

  const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 2 });

  // Of a field of a case: numbers from 10,000 on with commas, words as they are.
  function field(value) {
    return typeof value === "number" ? grouped.format(value) : String(value);
  }

  // So many of something: "1 launch", "1,024 launches".
  function count(number, one, many = `${one}s`) {
    return `${field(number)} ${number === 1 ? one : many}`;
  }

  // Text for Plotly, which takes some tags and entities for markup.
  function plain(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  // What a cell says as a number to sort by, null if it is none: "12.3 µs", "1,024", "1.2x", "5 %".
  const UNITS = new Map([
    ["", 1],
    ["x", 1],
    ["%", 1],
    ["s", 1],
    ["ms", 1e-3],
    ["µs", 1e-6],
    ["ns", 1e-9],
    ["B", 1],
    ["KiB", 2 ** 10],
    ["MiB", 2 ** 20],
    ["GiB", 2 ** 30],
    ["B/s", 1],
    ["kB/s", 1e3],
    ["MB/s", 1e6],
    ["GB/s", 1e9],
    ["min", 60],
    ["h", 3600],
  ]);
  const NUMBER = /^([-−]?\d[\d,]*(?:\.\d+)?)\s*(x|%|[nµm]?s|[KMG]iB|[kMG]?B\/s|B|min|h)?(?![\w.])/;

  function sortable(text) {
    const found = NUMBER.exec(text.trim());
    if (found === null) return null;
    // An interval has its unit behind it: "6.30 (5.05 to 7.41) µs".
    const behind = /^[^()]*\([^()]*\)\s*([nµm]?s|[kMG]?B\/s)\b/.exec(text.trim());
    const unit = found[2] ?? behind?.[1] ?? "";
    return Number(found[1].replaceAll(",", "").replace("−", "-")) * UNITS.get(unit);
  }

  return {
    US,
    GB,
    significant,
    seconds,
    secondsInterval,
    bytes,
    bandwidth,
    field,
    count,
    plain,
    sortable,
  };
})();
