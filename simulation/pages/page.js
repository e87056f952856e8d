"use strict";
/* Shows the table's row under the pointer. The page says everything without it. */
const tip = document.body.appendChild(document.createElement("div"));
tip.id = "tip";
tip.hidden = true;

function told(table, row) {
  const heads = table.tHead.rows[0].cells;
  const said = [];
  for (let i = 0; i < row.cells.length; i += 1) {
    const cell = row.cells[i].textContent;
    if (cell !== "\u2013") said.push(`${heads[i].textContent}: ${cell}`);
  }
  return said.join("\n");
}

for (const area of document.querySelectorAll("svg[data-at]")) {
  const at = area.dataset.at.split(" ").map(Number);
  const table = document.getElementById(area.dataset.rows);
  if (!table || !area.dataset.at) continue;
  const hair = document.createElementNS("http://www.w3.org/2000/svg", "line");
  hair.setAttribute("class", "hair");
  hair.setAttribute("y1", "0");
  hair.setAttribute("y2", "100%");
  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    let near = 0;
    for (let i = 1; i < at.length; i += 1) {
      if (Math.abs(at[i] - share) < Math.abs(at[near] - share)) near = i;
    }
    hair.setAttribute("x1", `${100 * at[near]}%`);
    hair.setAttribute("x2", `${100 * at[near]}%`);
    area.append(hair);
    tip.textContent = told(table, table.tBodies[0].rows[near]);
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 6);
    const top = Math.min(event.clientY + 14, window.innerHeight - tip.offsetHeight - 6);
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  });
  area.addEventListener("pointerleave", () => {
    hair.remove();
    tip.hidden = true;
  });
}
