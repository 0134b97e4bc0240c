"use strict";
// Brings the page to life: tables, rows, and each chart once it is about to be seen.

(() => {
  kv.theme.start();
  document.querySelectorAll("table.sortable").forEach(kv.tables.upgrade);
  document.querySelectorAll(".rows").forEach((box) => kv.rows.mount(box));

  const charts = [...document.querySelectorAll("figure.chart")].map(kv.chart.mount).filter(Boolean);
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        if (isIntersecting) {
          seen.unobserve(target);
          charts.find(({ figure }) => figure === target).start();
        }
      }
    },
    { rootMargin: "400px" },
  );
  charts.forEach(({ figure }) => seen.observe(figure));
  addEventListener("beforeprint", () => charts.forEach(({ start }) => start()));

  // The contents mark the section that is read: the last one that began above a third of the window.
  const links = [...document.querySelectorAll("nav a")];
  const read = new IntersectionObserver(
    (entries) => {
      for (const { isIntersecting, target } of entries) {
        for (const link of links) {
          if (link.hash !== `#${target.id}`) continue;
          if (isIntersecting) link.setAttribute("aria-current", "true");
          else link.removeAttribute("aria-current");
        }
      }
    },
    { rootMargin: "-33% 0px -66% 0px" },
  );
  document.querySelectorAll("main > section").forEach((section) => read.observe(section));

  function restore() {
    const found = kv.address.read();
    const chart = found && charts.find(({ id }) => id === found.id);
    if (chart) chart.restore(found.words);
    (chart ? chart.figure : document.getElementById(location.hash.slice(1)))?.scrollIntoView();
  }
  addEventListener("hashchange", restore);
  document.querySelectorAll("nav a").forEach((link) =>
    // Of the address that is there already there is no change to be told of.
    link.addEventListener("click", () => setTimeout(restore)),
  );
  if (location.hash) restore();
})();
