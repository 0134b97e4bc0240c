"use strict";
// A strategy's marker: Matplotlib's name of it, Plotly's, and a small drawing for legends.

kv.markers = (() => {
  const PLOTLY = {
    o: "circle",
    s: "square",
    D: "diamond",
    d: "diamond-tall",
    "^": "triangle-up",
    v: "triangle-down",
    "<": "triangle-left",
    ">": "triangle-right",
    p: "pentagon",
    h: "hexagon",
    H: "hexagon2",
    "*": "star",
    X: "x",
    P: "cross",
  };

  // Corners of a regular shape of radius 5 around 0, the first at so many degrees from the top.
  function corners(count, turn = 0, inner = 5) {
    return Array.from({ length: count }, (_, i) => {
      const angle = ((turn + (360 * i) / count) * Math.PI) / 180;
      const radius = i % 2 ? inner : 5;
      return `${(radius * Math.sin(angle)).toFixed(2)},${(-radius * Math.cos(angle)).toFixed(2)}`;
    }).join(" ");
  }

  const PLUS = "-2,-5 2,-5 2,-2 5,-2 5,2 2,2 2,5 -2,5 -2,2 -5,2 -5,-2 -2,-2";
  const SHAPES = {
    s: "-4,-4 4,-4 4,4 -4,4",
    D: corners(4),
    d: "0,-5 3,0 0,5 -3,0",
    "^": corners(3),
    v: corners(3, 180),
    "<": corners(3, 270),
    ">": corners(3, 90),
    p: corners(5),
    h: corners(6),
    H: corners(6, 30),
    "*": corners(10, 0, 2.2),
    P: PLUS,
    X: PLUS,
  };

  function plotly(strategy) {
    return PLOTLY[strategy.marker] + (strategy.hollow ? "-open" : "");
  }

  function swatch(strategy, colour) {
    const looks = {
      fill: strategy.hollow ? "none" : colour,
      stroke: colour,
      "stroke-width": 1.2,
    };
    const shape =
      strategy.marker === "o"
        ? kv.svg("circle", { r: 4, ...looks })
        : kv.svg("polygon", { points: SHAPES[strategy.marker], ...looks });
    if (strategy.marker === "X") shape.setAttribute("transform", "rotate(45)");
    const line = kv.svg("line", {
      x1: -14,
      x2: 14,
      y1: 0,
      y2: 0,
      stroke: colour,
      "stroke-width": 1.8,
      "stroke-dasharray": strategy.dashed ? "4 3" : "none",
    });
    const attributes = { class: "swatch", viewBox: "-15 -7 30 14", "aria-hidden": "true" };
    return kv.svg("svg", attributes, line, shape);
  }

  return { plotly, swatch };
})();
