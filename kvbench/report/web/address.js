"use strict";
// The settings of the chart that was changed last, behind the # of the page's address.

kv.address = (() => {
  function say(id, words) {
    const query = new URLSearchParams(words).toString();
    history.replaceState(null, "", `#${id}${query ? `?${query}` : ""}`);
  }

  // { id, words } of the address, null if it has none of a chart.
  function read() {
    const [id, query] = location.hash.slice(1).split("?");
    return query === undefined ? null : { id, words: [...new URLSearchParams(query)] };
  }

  return { say, read };
})();
