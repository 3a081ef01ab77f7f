"use strict";
// Parts of pages. All data are text: none becomes markup.

const byId = (id) => document.getElementById(id);
const make = (tag, className, ...children) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
};
const draw = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
};
const percent = (share) => `${(100 * share).toPrecision(3)} %`;
const number = (x) => (x === null || x === undefined ? "" : Math.abs(x) >= 1e5 ? x.toExponential(2) : x.toFixed(3));
const fixed = (x, digits) => (x === null || x === undefined ? "not finite" : x.toFixed(digits));
const signed = (x, digits = 2) => (x === null ? "" : `${x > 0 ? "+" : ""}${x.toFixed(digits)}`);
// What has no shape of its own can be seen: ends of lines, control characters, marks that reorder a line, unusual spaces.
const spelled = (c) => {
  if (c === "\n") return "⏎";
  if (c === "\t") return "⇥";
  return c < " " ? String.fromCodePoint(0x2400 + c.codePointAt(0)) : `\\u{${c.codePointAt(0).toString(16)}}`;
};
const flowing = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Cn}\p{Co}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]|(?! )\p{Zs}/gu, spelled);
const visible = (text) => flowing(text).replaceAll(" ", "·");
const token = (text) => make("span", "token", visible(text));
const table = (heads, rows) => {
  const cell = (tag, [content, className]) => make(tag, className ?? "", content);
  const row = (tag, cells) => make("tr", "", ...cells.map((one) => cell(tag, one)));
  return make("table", "rows", make("thead", "", row("th", heads)), make("tbody", "", ...rows.map((cells) => row("td", cells))));
};
const part = (title, ...content) => make("section", "", make("h3", "", title), ...content);
const explained = (texts) => (texts ?? []).map((text) => make("p", "explanation", flowing(text)));

