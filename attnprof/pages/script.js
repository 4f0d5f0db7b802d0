"use strict";
document.documentElement.classList.add("has-script");
document.querySelector("nav details").open = matchMedia("(min-width: 1100px)").matches;
for (const box of document.querySelectorAll(".box")) {
  const body = box.querySelector("tbody");
  const rows = [...body.rows];
  const heads = [...box.querySelectorAll("thead th")];
  const value = (row, column) => {
    const cell = row.cells[column];
    if (!("v" in cell.dataset)) return null;
    return heads[column].dataset.kind === "number" ? Number(cell.dataset.v) : cell.dataset.v;
  };
  const compare = (a, b) =>
    typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const known = rows.filter((row) => value(row, column) !== null);
      const unknown = rows.filter((row) => value(row, column) === null);
      known.sort((a, b) => (up ? 1 : -1) * compare(value(a, column), value(b, column)));
      body.append(...known, ...unknown);
    });
  });
  box.querySelector("input")?.addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    box.querySelector("output").textContent = words.length ? `${shown} of ${rows.length}` : "";
    box.querySelector(".none").hidden = shown > 0;
  });
}
