"use strict";
// Filters rows by the selects of the form, and sorts tables by the buttons of their headings.
const form = document.querySelector("form.filters");

function filter() {
  const wanted = [...form.querySelectorAll("select")].filter(select => select.value);
  let shown = 0, all = 0;
  for (const row of document.querySelectorAll("table.rows tbody tr")) {
    row.hidden = wanted.some(select => row.dataset[select.name] !== select.value);
    shown += !row.hidden;
    all += 1;
  }
  for (const more of document.querySelectorAll("details.more")) {
    const some = more.querySelector("tbody tr:not([hidden])") !== null;
    more.hidden = !some;
    if (wanted.length) more.open = some;
  }
  for (const ladder of document.querySelectorAll("section.ladder"))
    ladder.hidden = ladder.querySelector("table.rows tbody tr:not([hidden])") === null;
  form.querySelector("output").value = `${shown} of ${all} rows`;
}

if (form) {
  form.hidden = false;
  form.addEventListener("change", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", event => event.preventDefault());
  filter();
}

for (const button of document.querySelectorAll("button.sort")) button.addEventListener("click", () => {
  const head = button.parentElement, body = head.closest("table").tBodies[0], column = head.cellIndex;
  const up = head.getAttribute("aria-sort") !== "ascending";
  const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
  const compare = (a, b) => isNaN(a) || isNaN(b) || !a || !b ? a.localeCompare(b) : a === b ? 0 : a - b;
  for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(value(a), value(b))));
});

// A link to something inside a closed <details> opens it.
function reveal() {
  const goal = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let parent = goal && goal.parentElement; parent; parent = parent.parentElement) if (parent.tagName === "DETAILS") parent.open = true;
}
addEventListener("hashchange", reveal);
reveal();
