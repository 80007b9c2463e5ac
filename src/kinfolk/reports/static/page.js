// What every page has: the theme button, and boxes that say that they scroll.
"use strict";
window.kinfolk = (() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  const listeners = [];
  const LONG = 60; // characters of a cell that stands below its label on a phone

  // Pages opened from disk may be refused a storage; the choice then lasts until the page closes.
  const stored = (change) => {
    try {
      if (change) localStorage.setItem("kinfolk-theme", change);
      return localStorage.getItem("kinfolk-theme");
    } catch {
      return null;
    }
  };

  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const changed = () => {
    const button = document.querySelector(".theme");
    if (button) button.textContent = theme() === "dark" ? "Light" : "Dark";
    listeners.forEach((listener) => listener());
  };

  if (["light", "dark"].includes(stored())) root.dataset.theme = stored();
  dark.addEventListener("change", changed);

  // A printed page has the width of the paper before the charts are drawn for it.
  const print = (on) => {
    root.classList.toggle("printing", on);
    listeners.forEach((listener) => listener());
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  paper.addEventListener("change", (event) => print(event.matches));

  const watchScroll = (box) => {
    const update = () => {
      const rest = box.scrollWidth - box.clientWidth;
      box.classList.toggle("more", rest > 1 && box.scrollLeft < rest - 1);
      if (rest > 1) box.tabIndex = 0;
    };
    box.addEventListener("scroll", update, { passive: true });
    new ResizeObserver(update).observe(box);
    update();
  };

  // On a phone a record is a card: each cell then says its column.
  const labelCells = (table) => {
    const names = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    for (const row of table.tBodies[0].rows)
      [...row.cells].forEach((cell, index) => {
        cell.dataset.label = names[index] || "";
        cell.classList.toggle("long", cell.textContent.length > LONG);
      });
    table.classList.add("labelled");
  };

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.createElement("button");
    button.className = "theme";
    button.type = "button";
    button.title = "Switch between light and dark";
    button.addEventListener("click", () => {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      stored(root.dataset.theme);
      changed();
    });
    document.querySelector("main").prepend(button);
    changed();
    document.querySelectorAll(".scroll").forEach(watchScroll);
    document.querySelectorAll("table.records").forEach(labelCells);
  });

  const probe = (name) => {
    const span = document.createElement("span");
    span.style.color = `var(--${name})`;
    root.append(span);
    const color = getComputedStyle(span).color;
    span.remove();
    return color;
  };

  return { onRedraw: (listener) => listeners.push(listener), color: probe };
})();
