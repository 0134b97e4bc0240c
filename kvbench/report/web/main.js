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

  function restore() {
    const found = kv.address.read();
    const chart = found && charts.find(({ id }) => id === found.id);
    if (!chart) return;
    chart.restore(found.words);
    chart.figure.scrollIntoView();
  }
  addEventListener("hashchange", restore);
  restore();
})();
