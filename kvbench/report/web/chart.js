"use strict";
// A chart with its settings, its legend of strategies, its values as a table, and its keys.
//
// What is drawn is a view's: kv.lines, kv.stacks, kv.shares, kv.fastest. Each has
//   defaults(op, kind)         the settings to begin with, strings by name
//   settle(op, kind, state)    makes whatever was asked for something that can be shown
//   controls(op, kind, state)  the settings that there are, with their options
//   strategies(op)             those that can be hidden; none where there is no such function
//   view(op, kind, state, look)  traces and layout for Plotly; lines of points to walk with the
//                              arrow keys; strategies shown; table; note; and why, if there is
//                              nothing to show

kv.chart = (() => {
  const { element, run } = kv;
  const coarse = matchMedia("(pointer: coarse)").matches;
  const CONFIG = {
    displayModeBar: false,
    responsive: true,
    scrollZoom: false,
    showTips: false,
    doubleClick: "reset",
  };
  const KEYS = "Arrow keys walk the points, Home and End go to a line's ends, Escape leaves.";

  function look(hidden, width) {
    const dark = kv.theme.dark();
    const colour = (strategy) => (dark ? strategy.dark : strategy.light);
    const faded = (hex, alpha) => {
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
      return `rgba(${r},${g},${b},${alpha})`;
    };
    return {
      hidden,
      colour,
      dark,
      faded,
      faint: (strategy) => faded(colour(strategy), 0.2),
      part: (name) => run.parts_of_a_time[name]?.[dark ? 1 : 0] ?? kv.theme.colour("muted"),
      muted: kv.theme.colour("muted"),
      ink: kv.theme.colour("ink"),
      paper: kv.theme.colour("paper"),
      grid: kv.theme.colour("rule"),
      narrow: width < 560,
    };
  }

  function common(view, at, narrow) {
    const axis = {
      gridcolor: at.grid,
      linecolor: at.muted,
      zeroline: false,
      automargin: true,
      ticks: "outside",
      tickcolor: at.grid,
      fixedrange: coarse,
    };
    const numbers = { tickformat: ",~r" };
    const { xaxis, yaxis, ...rest } = view.layout;
    return {
      autosize: true,
      showlegend: false,
      hovermode: "closest",
      dragmode: coarse ? false : "zoom",
      margin: { l: narrow ? 44 : 60, r: 12, t: 10, b: 48 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: {
        family: getComputedStyle(document.body).fontFamily,
        size: narrow ? 12 : 13,
        color: at.ink,
      },
      hoverlabel: {
        align: "left",
        bgcolor: at.paper,
        font: { color: at.ink, size: 13 },
        namelength: 0,
      },
      ...rest,
      xaxis: { ...axis, ...xaxis },
      yaxis: { ...axis, ...numbers, ...yaxis, title: { standoff: 14, ...yaxis.title } },
    };
  }

  // Settings in a row. Elements that stay keep their place and the focus.
  function makeControls(box, title, onChange) {
    const made = new Map();

    function make(control, id) {
      const input = control.number
        ? element("input", {
            id,
            type: "number",
            min: 1,
            max: 10000,
            step: 1,
            inputmode: "numeric",
          })
        : element("select", { id });
      input.addEventListener("change", () => onChange(control.name, input.value));
      const label = element("label", { for: id }, control.label);
      return {
        wrapper: element("div", { class: "control" }, label, input),
        label,
        input,
        options: "",
      };
    }

    return (all, state) => {
      // A field that no case differs in is nothing to choose.
      const controls = all.filter((control) => control.number || control.options.length);
      const names = controls.map((control) => control.name);
      for (const [name, { wrapper }] of made) if (!names.includes(name)) wrapper.remove();
      controls.forEach((control, place) => {
        if (!made.has(control.name))
          made.set(control.name, make(control, `${title}-${control.name}`));
        const { wrapper, label, input } = made.get(control.name);
        const options = JSON.stringify(control.options ?? null);
        if (!control.number && made.get(control.name).options !== options) {
          input.replaceChildren(
            ...control.options.map(([value, text]) => element("option", { value }, text)),
          );
          made.get(control.name).options = options;
        }
        input.value = state[control.name];
        input.disabled =
          Boolean(control.disabled) || (!control.number && control.options.length < 2);
        label.textContent = control.label;
        wrapper.title = control.why ?? "";
        if (box.children[place] !== wrapper) box.insertBefore(wrapper, box.children[place] ?? null);
      });
    };
  }

  // The strategies of an op as checkboxes that look as their lines do.
  function makeLegend(numbers, hidden, onChange) {
    const boxes = new Map();
    const list = element("div", { class: "strategies" });
    for (const number of numbers) {
      const strategy = run.strategies[number];
      const input = element("input", { type: "checkbox", checked: true });
      input.addEventListener("change", () => {
        if (input.checked) hidden.delete(number);
        else hidden.add(number);
        onChange();
      });
      const swatch = element("span", { class: "swatch-box" });
      const name = strategy.name.slice(strategy.name.indexOf(".") + 1);
      const label = element("label", {}, input, swatch, element("span", {}, name));
      list.append(label);
      boxes.set(number, { input, swatch, label, strategy });
    }
    const all = (visible) => () => {
      numbers.forEach((number) => (visible ? hidden.delete(number) : hidden.add(number)));
      onChange();
    };
    const legend = element(
      "fieldset",
      { class: "legend" },
      element("legend", {}, "Strategies"),
      element(
        "div",
        { class: "buttons" },
        element("button", { type: "button", onclick: all(true) }, "All"),
        element("button", { type: "button", onclick: all(false) }, "None"),
      ),
      list,
    );
    return {
      legend,
      update(at, there) {
        for (const [number, { input, swatch, label, strategy }] of boxes) {
          input.checked = !hidden.has(number);
          label.classList.toggle("absent", !there.includes(number));
          label.title = there.includes(number) ? "" : "nothing of it in this view";
          swatch.replaceChildren(kv.markers.swatch(strategy, at.colour(strategy)));
        }
      },
    };
  }

  // Arrow keys over the points of a view; what is reached is shown as the mouse would show it.
  function makeWalk(plot, live) {
    let lines = [];
    let at = null;

    function show() {
      const point = lines[at.line].points[at.point];
      Plotly.Fx.hover(plot, [
        point.hover ?? { curveNumber: point.curve, pointNumber: point.point },
      ]);
      live.textContent = point.text;
    }

    function leave() {
      if (at === null) return;
      at = null;
      Plotly.Fx.unhover(plot);
      live.textContent = "";
    }

    // The point of another line that is next above or below, at the place that is nearest.
    function across(up) {
      const here = lines[at.line].points[at.point];
      let best = null;
      lines.forEach((line, number) => {
        if (number === at.line || !line.points.length) return;
        const nearest = line.points.reduce(
          (least, point, place) =>
            Math.abs(point.x - here.x) < Math.abs(line.points[least].x - here.x) ? place : least,
          0,
        );
        const point = line.points[nearest];
        // Of points as high, the order of lines decides, so that none is out of reach.
        const above = point.y - here.y || number - at.line;
        if (up ? above <= 0 : above >= 0) return;
        const far = [
          Math.abs(point.x - here.x),
          Math.abs(point.y - here.y),
          Math.abs(number - at.line),
        ];
        if (best === null || less(far, best.far)) best = { line: number, point: nearest, far };
      });
      if (best !== null) at = { line: best.line, point: best.point };
    }

    const less = (a, b) => {
      const place = a.findIndex((value, i) => value !== b[i]);
      return place >= 0 && a[place] < b[place];
    };

    const moves = {
      ArrowRight: () => {
        at.point = Math.min(at.point + 1, lines[at.line].points.length - 1);
      },
      ArrowLeft: () => {
        at.point = Math.max(at.point - 1, 0);
      },
      ArrowUp: () => across(true),
      ArrowDown: () => across(false),
      Home: () => {
        at.point = 0;
      },
      End: () => {
        at.point = lines[at.line].points.length - 1;
      },
    };

    plot.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "Escape") leave();
      if (!(event.key in moves) || !lines.length) return;
      event.preventDefault();
      if (at === null) at = { line: 0, point: 0 };
      else moves[event.key]();
      show();
    });
    plot.addEventListener("blur", leave);
    return (found) => {
      lines = found.filter((line) => line.points.length);
      at = null;
      live.textContent = "";
    };
  }

  // Brings a figure of the page to life. It is drawn when it is about to be seen.
  function mount(figure) {
    const { kind, op } = figure.dataset;
    const module =
      {
        fastest: kv.fastest,
        breakdown: kv.stacks,
        amortisation: kv.stacks,
        "gather-share": kv.shares,
      }[kind] ?? kv.lines;
    figure.querySelector(".unscripted").remove();
    if (!run.ops[op]) {
      figure.append(element("p", { class: "why" }, `The run has no row of ${op}.`));
      return null;
    }
    const title = figure.querySelector("h3");
    const words = figure.querySelector("figcaption p");
    const hidden = new Set();
    let state = module.defaults(op, kind);
    module.settle(op, kind, state);
    let initial = { ...state };
    let drawn = false;
    let current = null;
    let at = null;

    const id = figure.id;
    const box = element("div", { class: "control-grid" });
    const controls = element(
      "details",
      { class: "controls", open: matchMedia("(min-width: 45rem)").matches },
      element("summary", {}, "Settings"),
      box,
    );
    const plot = element("div", {
      class: "plot",
      tabindex: 0,
      role: "application",
      "aria-roledescription": "chart",
      "aria-describedby": `${id}-keys`,
    });
    const why = element("p", { class: "why", hidden: true });
    const live = element("p", { class: "visually-hidden", "aria-live": "polite" });
    const keys = element("p", { class: "plot-help", id: `${id}-keys` }, KEYS);
    const plotBox = element("div", { class: "plot-box" }, plot, keys);
    const note = element("p", { class: "note" });
    const values = element("div");
    const table = element(
      "details",
      { class: "values", ontoggle: () => fillTable() },
      element("summary", {}, "Values as a table"),
      values,
    );
    const reset = element(
      "button",
      { type: "button", class: "reset", onclick: () => restart() },
      "Reset",
    );
    const settings = makeControls(box, id, (name, value) => {
      state[name] = value;
      if (name === "y") delete state.yscale; // what suits the one need not suit the other
      changed();
    });
    const hideable = module.strategies?.(op) ?? [];
    hideable.sort((a, b) => (run.strategies[a].name < run.strategies[b].name ? -1 : 1));
    const legend = hideable.length ? makeLegend(hideable, hidden, () => changed()) : null;
    const swatches = element("div", { class: "strategies keys", hidden: true });
    box.append(element("div", { class: "control" }, reset));
    const walk = makeWalk(plot, live);
    figure.append(
      controls,
      why,
      plotBox,
      live,
      swatches,
      ...(legend ? [legend.legend] : []),
      note,
      table,
    );

    function fillTable() {
      if (!table.open || current === null) return;
      values.replaceChildren(
        kv.tables.make({
          caption: title.textContent,
          header: current.table.header,
          rows: current.table.rows,
        }),
      );
    }

    // All but the drawing itself, which takes long, is there from the beginning: a page that moves
    // while it is read takes a button from under the finger.
    function draw() {
      module.settle(op, kind, state);
      const width = figure.clientWidth;
      at = look(hidden, width);
      current = module.view(op, kind, state, at);
      settings(module.controls(op, kind, state), state);
      title.textContent = current.title ?? title.textContent;
      if (current.how) words.textContent = current.how;
      plot.setAttribute("aria-label", title.textContent);
      why.hidden = !current.why;
      why.textContent = current.why;
      // Where nothing is drawn, nothing is said of it.
      for (const part of [plot, note, table]) part.hidden = Boolean(current.why);
      note.textContent = current.note;
      legend?.update(at, current.strategies);
      if (current.swatches) {
        swatches.hidden = Boolean(current.why);
        swatches.replaceChildren(
          ...current.swatches.map(({ text, drawing }) =>
            element("span", { class: "key" }, drawing, text),
          ),
        );
      }
      walk(current.why ? [] : current.lines);
      plot.style.height = `${current.height ?? (at.narrow ? 340 : 430)}px`;
      paint();
      fillTable();
    }

    function paint() {
      if (!drawn || current.why) return;
      const layout = common(current, at, at.narrow);
      // What was zoomed to stays until another view is asked for.
      layout.uirevision = JSON.stringify(state);
      Plotly.react(plot, current.traces, layout, CONFIG);
    }

    function changed() {
      draw();
      kv.address.say(id, stateToSay());
    }

    // What differs from the beginning.
    function stateToSay() {
      const changes = Object.entries(state).filter(([name, value]) => initial[name] !== value);
      if (hidden.size) changes.push(["hide", [...hidden].sort((a, b) => a - b).join(".")]);
      return changes;
    }

    function restart() {
      state = { ...initial };
      hidden.clear();
      changed();
      if (drawn && !plot.hidden)
        Plotly.relayout(plot, { "xaxis.autorange": true, "yaxis.autorange": true });
    }

    function restore(changes) {
      state = { ...initial };
      hidden.clear();
      for (const [name, value] of changes) {
        if (name !== "hide") state[name] = value;
        else
          value
            .split(".")
            .map(Number)
            .filter((n) => hideable.includes(n))
            .forEach((n) => hidden.add(n));
      }
      drawn = true;
      draw();
    }

    function start() {
      if (drawn) return;
      drawn = true;
      paint();
    }

    kv.theme.onChange(draw);
    addEventListener(
      "resize",
      kv.debounced(() => {
        if (current && look(hidden, figure.clientWidth).narrow !== narrowBefore) draw();
        narrowBefore = figure.clientWidth < 560;
      }),
    );
    let narrowBefore = figure.clientWidth < 560;
    draw();
    return { id, figure, start, restore };
  }

  return { mount };
})();
