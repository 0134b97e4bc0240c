"use strict";
// Light and dark: as the system has it until the button is pressed. Nothing is remembered.

kv.theme = (() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];

  function dark() {
    const chosen = root.dataset.theme;
    return chosen ? chosen === "dark" : system.matches;
  }

  function changed() {
    const button = document.getElementById("theme");
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Use light colours" : "Use dark colours");
    listeners.forEach((listen) => listen());
  }

  function start() {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      changed();
    });
    system.addEventListener("change", changed);
    // Paper is white.
    let before;
    addEventListener("beforeprint", () => {
      before = root.dataset.theme;
      root.dataset.theme = "light";
      changed();
    });
    addEventListener("afterprint", () => {
      if (before === undefined) delete root.dataset.theme;
      else root.dataset.theme = before;
      changed();
    });
    changed();
  }

  // A colour of the style sheet, as --name there.
  function colour(name) {
    return getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  }

  return { dark, start, colour, onChange: (listen) => listeners.push(listen) };
})();
