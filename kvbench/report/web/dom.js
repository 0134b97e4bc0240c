"use strict";
// Elements in one expression. Text goes in as text: no name or reason is ever markup.

kv.element = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") made.style.cssText = value;
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
};

kv.svg = (tag, attributes = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};

// Text that may be broken within a pair of names, "a+b", as html.py has it.
kv.breakable = (text) =>
  String(text)
    .split(/(?<=\w\+)(?=\w)/)
    .flatMap((part, place) => (place ? [kv.element("wbr"), part] : [part]));

// Call once things have been still for so many milliseconds.
kv.debounced = (call, wait = 120) => {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...given), wait);
  };
};
