// The inspection page: masks and attention on canvases, and tokens that show what they attend to.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const { color, onRedraw } = window.kinfolk;
  const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const shades = () => ({ on: color("c0"), off: color("hair"), row: color("c1"), ink: color("ink") });
  const spanOf = (node) => (node.dataset.span ? node.dataset.span.split(" ").map(Number) : null);
  const overlap = (a, b) => a && b && a[0] < b[1] && b[0] < a[1];

  // A canvas with sharp cells on every screen: sizes are in pixels of the page.
  const prepare = (canvas, width, height) => {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    return pen;
  };

  class Mask {
    constructor(figure, card) {
      this.canvas = figure.querySelector("canvas");
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.bits = bytesOf(this.data.bits);
      this.card = card;
      this.rows = new Set();
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerdown", (event) => this.point(event));
      this.canvas.addEventListener("pointerleave", leave);
      this.draw();
    }

    at(row, column) {
      const index = row * this.data.columns + column;
      return (this.bits[index >> 3] >> (7 - (index & 7))) & 1;
    }

    draw() {
      const { rows, columns } = this.data;
      const room = Math.min(300, this.card.clientWidth - 36);
      this.cell = Math.max(2, Math.min(11, Math.floor(room / columns)));
      const gap = this.cell > 5 ? 1 : 0;
      const pen = prepare(this.canvas, columns * this.cell, Math.max(1, rows) * this.cell);
      const { on, off, row } = shades();
      for (let i = 0; i < rows; i++)
        for (let j = 0; j < columns; j++) {
          const set = this.at(i, j);
          pen.globalAlpha = this.rows.size && !this.rows.has(i) ? 0.35 : 1;
          pen.fillStyle = set ? (this.rows.has(i) ? row : on) : off;
          pen.fillRect(j * this.cell, i * this.cell, this.cell - gap, this.cell - gap);
        }
      pen.globalAlpha = 0.8;
      pen.fillStyle = shades().ink; // between documents and segments
      for (const i of this.data.rowStarts) pen.fillRect(0, i * this.cell - 1, columns * this.cell, 1);
      for (const j of this.data.columnStarts) pen.fillRect(j * this.cell - 1, 0, 1, rows * this.cell);
      pen.globalAlpha = 1;
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top) / this.cell);
      const token = this.card.streams[this.data.queries]?.[this.data.positions[row]];
      if (token) this.card.show(token);
    }

    highlight(stream, places) {
      this.rows = new Set(this.data.positions.flatMap((place, row) => (this.data.queries === stream && places.has(place) ? [row] : [])));
      this.draw();
    }

    seen(row) {
      return Array.from({ length: this.data.columns }, (_, j) => j).filter((j) => this.at(row, j));
    }
  }

  class Card {
    constructor(node) {
      this.node = node;
      this.clientWidth = node.clientWidth;
      this.streams = all(".stream", node).map((stream) => all(".tok", stream));
      this.masks = all(".mask", node).map((figure) => new Mask(figure, this));
      this.streams.flat().forEach((token) => {
        token.addEventListener("pointerenter", () => this.show(token));
        token.addEventListener("pointerleave", leave);
      });
    }

    // A token of this card: where it stands for a token of the text, all cards show that one.
    show(token) {
      const span = spanOf(token);
      if (span) pick(span);
      else {
        pick(null);
        this.mark((other) => other === token);
      }
    }

    mark(chosen) {
      const streams = this.streams.map((tokens) => new Set(tokens.flatMap((token, place) => (chosen(token) ? [place] : []))));
      streams.forEach((places, stream) => places.forEach((place) => this.streams[stream][place].classList.add("active")));
      for (const mask of this.masks) {
        mask.highlight(mask.data.queries, streams[mask.data.queries] || new Set());
        for (const row of mask.rows) for (const key of mask.seen(row)) this.streams[mask.data.keys][key]?.classList.add("seen");
      }
    }

    clear() {
      this.streams.flat().forEach((token) => token.classList.remove("active", "seen"));
      this.masks.forEach((mask) => mask.highlight(-1, new Set()));
    }

    redraw() {
      this.clientWidth = this.node.clientWidth;
      if (this.clientWidth) this.masks.forEach((mask) => mask.draw());
    }
  }

  class Attention {
    constructor(node) {
      this.node = node;
      this.data = JSON.parse(node.querySelector('script[type="application/json"]').textContent);
      this.bytes = bytesOf(this.data.bytes);
      this.queries = all(".queries .tok", node);
      this.keys = all(".keys-strip .tok", node);
      this.chosen = [0, 0];
      this.query = null;
      this.addThumbs();
      this.queries.forEach((token, index) => {
        token.addEventListener("pointerenter", () => this.show(index));
        token.addEventListener("focus", () => this.show(index));
        token.addEventListener("click", () => this.show(index));
      });
      this.large = node.querySelector(".large");
      this.large.addEventListener("pointermove", (event) => {
        const box = this.large.getBoundingClientRect();
        this.show(Math.floor((event.clientY - box.top) / this.cell));
      });
      this.draw();
    }

    at(layer, head, query, key) {
      const [queries, keys] = this.data.shape;
      return this.bytes[((layer * this.data.heads + head) * queries + query) * keys + key] / 255;
    }

    addThumbs() {
      const box = this.node.querySelector(".thumbs");
      box.style.gridTemplateColumns = `repeat(${this.data.heads}, max-content)`;
      this.thumbs = [];
      for (let layer = 0; layer < this.data.layers; layer++)
        for (let head = 0; head < this.data.heads; head++) {
          const button = document.createElement("button");
          button.type = "button";
          button.title = `layer ${layer + 1}, head ${head + 1}`;
          button.setAttribute("aria-label", button.title);
          button.addEventListener("click", () => {
            this.chosen = [layer, head];
            this.draw();
          });
          const canvas = document.createElement("canvas");
          button.append(canvas);
          box.append(button);
          this.thumbs.push({ button, canvas, layer, head });
        }
    }

    paint(canvas, layer, head, cell) {
      const [queries, keys] = this.data.shape;
      const pen = prepare(canvas, Math.max(1, keys * cell), Math.max(1, queries * cell));
      pen.fillStyle = shades().on;
      for (let i = 0; i < queries; i++)
        for (let j = 0; j < keys; j++) {
          const weight = this.at(layer, head, i, j);
          if (!weight) continue;
          pen.globalAlpha = Math.sqrt(weight);
          pen.fillRect(j * cell, i * cell, cell, cell);
        }
      pen.globalAlpha = 0.8;
      pen.fillStyle = shades().ink; // between rows
      for (const start of this.data.rowStarts) {
        pen.fillRect(0, start * cell - 1, keys * cell, 1);
        pen.fillRect(start * cell - 1, 0, 1, queries * cell);
      }
      pen.globalAlpha = 1;
      return pen;
    }

    // Whether a key is in the memory of the row that a query is in.
    remembers(query, key) {
      const start = this.data.rowStarts.findLast((first) => first <= query) || 0;
      return key < start && key >= start - this.data.memory;
    }

    draw() {
      const [queries, keys] = this.data.shape;
      for (const { button, canvas, layer, head } of this.thumbs) {
        button.setAttribute("aria-pressed", String(layer === this.chosen[0] && head === this.chosen[1]));
        this.paint(canvas, layer, head, Math.max(1, Math.floor(56 / Math.max(queries, keys))));
      }
      this.cell = Math.max(4, Math.min(16, Math.floor(380 / Math.max(queries, keys))));
      const pen = this.paint(this.large, ...this.chosen, this.cell);
      if (this.query !== null) {
        pen.strokeStyle = shades().row;
        pen.lineWidth = 2;
        pen.strokeRect(0, this.query * this.cell, keys * this.cell, this.cell);
      }
      const [layer, head] = this.chosen;
      const words = [`layer ${layer + 1}, head ${head + 1}`];
      this.queries.forEach((token, index) => token.classList.toggle("active", index === this.query));
      this.keys.forEach((token, key) => token.classList.toggle("memory", this.query !== null && this.remembers(this.query, key)));
      this.keys.forEach((token, key) => token.style.setProperty("--w", this.query === null ? 0 : this.at(layer, head, this.query, key)));
      if (this.query !== null) {
        const best = Array.from({ length: keys }, (_, key) => key).sort((a, b) => this.at(layer, head, this.query, b) - this.at(layer, head, this.query, a))[0];
        const own = Array.from({ length: keys }, (_, key) => (this.remembers(this.query, key) ? this.at(layer, head, this.query, key) : 0));
        words.push(`${this.data.queries[this.query]} attends most to ${this.data.keys[best]}: ${this.at(layer, head, this.query, best).toFixed(2)}`);
        if (this.data.rowStarts.length) words.push(`${own.reduce((a, b) => a + b, 0).toFixed(2)} of its attention is to the memory`);
      }
      this.node.querySelector(".chosen").textContent = words.join("; ");
    }

    show(index) {
      if (index < 0 || index >= this.data.shape[0] || index === this.query) return;
      this.query = index;
      this.draw();
    }

    pick(span) {
      const index = span ? this.data.querySpans.findIndex((own) => overlap(own, span)) : -1;
      if (index < 0 && this.query !== null) {
        this.query = null;
        this.draw();
      }
      this.show(index);
    }
  }

  let held = null;
  const strip = all(".text-strip .tok");
  // A finger leaves when it is lifted; what it marked stays until it taps elsewhere.
  function leave(event) {
    if (event.pointerType === "mouse") pick(null);
  }

  function pick(span) {
    const wanted = span || held;
    strip.forEach((token) => token.classList.toggle("active", Boolean(overlap(spanOf(token), wanted))));
    for (const card of cards) {
      card.clear();
      if (wanted) card.mark((token) => overlap(spanOf(token), wanted));
    }
    if (wanted) attention.forEach((one) => one.pick(wanted));
  }

  const cards = all(".objective").map((node) => new Card(node));
  const attention = all(".attention").map((node) => new Attention(node));
  document.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" && !event.target.closest(".tok, canvas")) pick(null);
  });
  for (const token of strip) {
    token.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && pick(spanOf(token)));
    token.addEventListener("pointerleave", () => pick(null));
    token.addEventListener("focus", () => pick(spanOf(token)));
    token.addEventListener("blur", () => pick(null));
    token.addEventListener("click", () => {
      const span = spanOf(token);
      held = held && held[0] === span[0] ? null : span;
      pick(held);
    });
  }

  const off = new Set();
  const showFamilies = () => {
    for (const card of cards) card.node.classList.toggle("off", off.has(card.node.dataset.family));
    for (const chip of all(".chip[data-family]")) chip.setAttribute("aria-pressed", String(!off.has(chip.dataset.family)));
    for (const reset of all(".chip.reset")) reset.hidden = !off.size;
    cards.forEach((card) => card.redraw());
  };
  for (const chip of all(".chip[data-family]")) {
    chip.addEventListener("click", () => {
      if (!off.delete(chip.dataset.family)) off.add(chip.dataset.family);
      showFamilies();
    });
    chip.addEventListener("dblclick", () => {
      off.clear();
      all(".chip[data-family]").forEach((other) => other !== chip && off.add(other.dataset.family));
      showFamilies();
    });
  }
  for (const reset of all(".chip.reset"))
    reset.addEventListener("click", () => {
      off.clear();
      showFamilies();
    });

  onRedraw(() => {
    cards.forEach((card) => card.redraw());
    attention.forEach((one) => one.draw());
  });
  addEventListener("resize", () => cards.forEach((card) => card.redraw()));
});
