// The race page: which entrants are shown, switches between charts, tables that sort and filter.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const hidden = new Map(); // id of an entrant -> its name

  // An element names the entrants it shows; it goes when one of them is hidden.
  function showEntrants() {
    for (const element of all("[data-entrant]")) {
      const ids = element.dataset.entrant.split(" ");
      element.classList.toggle("off", ids.some((id) => hidden.has(id)));
    }
    for (const chip of all(".chip")) {
      chip.setAttribute("aria-pressed", String(!hidden.has(chip.dataset.id)));
    }
    for (const reset of all(".reset")) reset.hidden = hidden.size === 0;
    window.kinfolkCharts?.hideNames([...hidden.values()]);
  }

  for (const chip of all(".chip")) {
    chip.addEventListener("click", () => {
      if (!hidden.delete(chip.dataset.id)) hidden.set(chip.dataset.id, chip.dataset.name);
      showEntrants();
    });
    chip.addEventListener("dblclick", () => {
      hidden.clear();
      for (const other of all(".chip")) {
        if (other !== chip) hidden.set(other.dataset.id, other.dataset.name);
      }
      showEntrants();
    });
  }
  for (const reset of all(".reset")) {
    reset.addEventListener("click", () => {
      hidden.clear();
      showEntrants();
    });
  }

  for (const group of all("[data-switch]")) {
    const buttons = all("button", group);
    for (const button of buttons) {
      button.addEventListener("click", () => {
        for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
        for (const part of all("[data-group]")) {
          if (part.dataset.group === group.dataset.switch) {
            part.hidden = part.dataset.key !== button.dataset.key;
          }
        }
      });
    }
  }

  // Empty cells stay at the end in either direction.
  function compare(a, b, sign) {
    if (a === "" || b === "") return (a === "") - (b === "");
    const difference = Number(a) - Number(b);
    return sign * (Number.isNaN(difference) ? a.localeCompare(b) : difference);
  }

  function sortBy(table, column) {
    const heads = all("thead th", table);
    const descending = heads[column].getAttribute("aria-sort") === "ascending";
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(value(a), value(b), descending ? -1 : 1));
    table.tBodies[0].append(...rows);
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[column].setAttribute("aria-sort", descending ? "descending" : "ascending");
  }

  for (const table of all("table[data-sortable]")) {
    all("thead th", table).forEach((head, column) => {
      head.tabIndex = 0;
      head.addEventListener("click", () => sortBy(table, column));
      head.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          sortBy(table, column);
        }
      });
    });
  }

  for (const details of all("details.pairs:has(.filter)")) {
    const [search, shown] = all("input", details);
    const rows = all("tbody tr", details);
    const filter = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const fits = words.every((word) => text.includes(word));
        row.hidden = !fits || (shown.checked && !("shown" in row.dataset));
        left += row.hidden ? 0 : 1;
      }
      details.querySelector("output").textContent = `${left} of ${rows.length}`;
    };
    details.querySelector(".filter").hidden = false;
    search.addEventListener("input", filter);
    shown.addEventListener("change", filter);
    filter();
  }

  for (const button of all(".copy")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(code); // the browser refuses: the reader copies it
        button.textContent = "selected";
      }
    });
  }
});
