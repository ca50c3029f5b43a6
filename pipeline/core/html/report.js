"use strict";
for (const table of document.querySelectorAll("table[data-sort]")) {
  const body = table.tBodies[0];
  table.querySelectorAll("th button").forEach(button => button.addEventListener("click", () => {
    const head = button.closest("th"), column = head.cellIndex, down = head.getAttribute("aria-sort") !== "descending";
    const key = row => row.cells[column].dataset.v ?? row.cells[column].textContent;
    const compare = (a, b) => {
      const x = key(a), y = key(b), n = Number(x) - Number(y);
      return x !== "" && y !== "" && !Number.isNaN(n) ? n : x < y ? -1 : x > y ? 1 : 0;
    };
    const rows = [...body.rows].sort((a, b) => down ? -compare(a, b) : compare(a, b));
    table.querySelectorAll("th[aria-sort]").forEach(th => th.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  }));
}
for (const form of document.querySelectorAll("[data-filter]")) {
  const list = document.getElementById(form.dataset.filter), words = form.querySelector("input"), kind = form.querySelector("select"), said = form.querySelector("output");
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean), only = kind ? kind.value : "";
    let shown = 0;
    for (const item of list.children) {
      const text = item.textContent.toLowerCase();
      item.hidden = !(wanted.every(word => text.includes(word)) && (!only || (" " + item.dataset.kind + " ").includes(" " + only + " ")));
      shown += item.hidden ? 0 : 1;
    }
    said.textContent = shown + " of " + list.children.length;
  };
  form.addEventListener("input", apply);
  apply();
}
const open = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", open);
open();
