// The inspection page: masks and attention on canvases, and tokens that show what they attend to.
"use strict";
document.addEventListener("DOMContentLoaded", () => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const { color, onRedraw } = window.kinfolk;
  const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const shades = () => ({ on: color("c0"), off: color("hair"), row: color("c1"), ink: color("ink") });
  const spanOf = (node) => (node.dataset.span ? node.dataset.span.split(" ").map(Number) : null);
  const probability = (p) => (p >= 0.1 || !p ? p.toFixed(2) : p.toPrecision(2));
  const FADED = 36; // pixels at the right of a table that goes on
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
    return pen;
  };

  // Draw a picture of the same size, which is painted once, in place of what the canvas shows.
  const showPicture = (canvas, picture, alpha) => {
    const pen = canvas.getContext("2d");
    pen.save();
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.globalAlpha = alpha;
    pen.drawImage(picture, 0, 0);
    pen.restore();
    return pen;
  };

  class Mask {
    constructor(figure, card) {
      this.canvas = figure.querySelector("canvas");
      this.picture = document.createElement("canvas");
      this.data = JSON.parse(figure.querySelector("script").textContent);
      this.bits = bytesOf(this.data.bits);
      this.card = card;
      this.rows = new Set();
      this.canvas.addEventListener("pointermove", (event) => this.point(event));
      this.canvas.addEventListener("pointerdown", (event) => this.point(event));
      this.canvas.addEventListener("pointerleave", leave);
      this.paint();
    }

    at(row, column) {
      const index = row * this.data.columns + column;
      return (this.bits[index >> 3] >> (7 - (index & 7))) & 1;
    }

    paint() {
      const { rows, columns } = this.data;
      const room = Math.min(300, this.card.clientWidth - 52); // beside the name of the rows
      this.cell = Math.max(2, Math.min(11, Math.floor(room / columns)));
      const size = [columns * this.cell, Math.max(1, rows) * this.cell];
      prepare(this.canvas, ...size);
      const pen = prepare(this.picture, ...size);
      this.shades = shades();
      for (let i = 0; i < rows; i++) this.paintRow(pen, i, this.shades.on);
      this.draw();
    }

    // Cells without a gap between them are painted in runs.
    paintRow(pen, i, on) {
      const columns = this.data.columns;
      const gap = this.cell > 5 ? 1 : 0;
      for (let j = 0, end = 0; j < columns; j = end) {
        const set = this.at(i, j);
        for (end = j + 1; !gap && end < columns && this.at(i, end) === set; ) end++;
        pen.fillStyle = set ? on : this.shades.off;
        pen.fillRect(j * this.cell, i * this.cell, (end - j) * this.cell - gap, this.cell - gap);
      }
    }

    draw() {
      const { rows, columns, rowStarts, columnStarts } = this.data;
      const pen = showPicture(this.canvas, this.picture, this.rows.size ? 0.35 : 1);
      for (const i of this.rows) {
        pen.clearRect(0, i * this.cell, columns * this.cell, this.cell);
        this.paintRow(pen, i, this.shades.row);
      }
      pen.globalAlpha = 0.8;
      pen.fillStyle = this.shades.ink; // between documents and segments
      for (const i of rowStarts) pen.fillRect(0, i * this.cell - 1, columns * this.cell, 1);
      for (const j of columnStarts) pen.fillRect(j * this.cell - 1, 0, 1, rows * this.cell);
      pen.globalAlpha = 1;
    }

    point(event) {
      const box = this.canvas.getBoundingClientRect();
      const row = Math.floor((event.clientY - box.top) / this.cell);
      if (this.rows.has(row)) return; // moved within it
      const token = this.card.streams[this.data.queries]?.[this.data.positions[row]];
      if (token) this.card.show(token);
    }

    highlight(places) {
      const empty = !this.rows.size;
      this.rows = new Set(places.size ? this.data.positions.flatMap((place, row) => (places.has(place) ? [row] : [])) : []);
      if (this.rows.size || !empty) this.draw();
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
      this.spans = this.streams.map((tokens) => tokens.map(spanOf));
      this.boxes = all(".stream", node);
      this.marked = []; // tokens with a class that clear() removes
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
        this.mark((_, other) => other === token);
      }
    }

    mark(chosen) {
      const streams = this.streams.map((tokens, stream) => new Set(tokens.flatMap((token, place) => (chosen(this.spans[stream][place], token) ? [place] : []))));
      streams.forEach((places, stream) => places.forEach((place) => this.add(this.streams[stream][place], "active")));
      for (const mask of this.masks) {
        mask.highlight(streams[mask.data.queries] || new Set());
        for (const row of mask.rows) for (const key of mask.seen(row)) this.add(this.streams[mask.data.keys][key], "seen");
      }
    }

    // Where each table scrolls to, so that its first marked token is in view; not below a mouse.
    moves() {
      return this.streams.flatMap((tokens, stream) => {
        const [box, cell] = [this.boxes[stream], tokens.find((token) => token.classList.contains("active"))?.closest("td")];
        if (!cell || box.matches(":hover")) return [];
        const [head, left] = [box.querySelector("th").offsetWidth, cell.offsetLeft - box.scrollLeft];
        if (left >= head && left + cell.offsetWidth <= box.clientWidth - FADED) return [];
        return [[box, cell.offsetLeft - (head + box.clientWidth - cell.offsetWidth) / 2]];
      });
    }

    add(token, name) {
      token?.classList.add(name);
      if (token) this.marked.push(token);
    }

    clear() {
      this.marked.forEach((token) => token.classList.remove("active", "seen"));
      this.marked = [];
      this.masks.forEach((mask) => mask.highlight(new Set()));
    }

    redraw() {
      this.clientWidth = this.node.clientWidth;
      if (this.clientWidth) this.masks.forEach((mask) => mask.paint());
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
      this.picture = document.createElement("canvas");
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
      this.paint();
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
            this.choose(layer, head);
          });
          const canvas = document.createElement("canvas");
          button.append(canvas);
          box.append(button);
          this.thumbs.push({ button, canvas, layer, head });
        }
    }

    paintHead(canvas, layer, head, cell) {
      const [queries, keys] = this.data.shape;
      const pen = prepare(canvas, keys * cell, queries * cell);
      const weights = document.createElement("canvas"); // a pixel for each pair of tokens
      [weights.width, weights.height] = [keys, queries];
      const own = weights.getContext("2d");
      const image = own.createImageData(keys, queries);
      const first = (layer * this.data.heads + head) * queries * keys;
      for (let i = 0; i < queries * keys; i++) image.data[4 * i + 3] = 255 * Math.sqrt(this.bytes[first + i] / 255);
      own.putImageData(image, 0, 0);
      own.globalCompositeOperation = "source-in";
      own.fillStyle = shades().on;
      own.fillRect(0, 0, keys, queries);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(weights, 0, 0, keys * cell, queries * cell);
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

    paint() {
      const cell = Math.max(1, Math.floor(56 / Math.max(...this.data.shape)));
      for (const { canvas, layer, head } of this.thumbs) this.paintHead(canvas, layer, head, cell);
      this.choose(...this.chosen);
    }

    choose(layer, head) {
      const [queries, keys] = this.data.shape;
      this.chosen = [layer, head];
      for (const thumb of this.thumbs) thumb.button.setAttribute("aria-pressed", String(thumb.layer === layer && thumb.head === head));
      this.cell = Math.max(4, Math.min(16, Math.floor(Math.min(380, this.node.clientWidth - 20) / Math.max(queries, keys))));
      this.paintHead(this.picture, layer, head, this.cell);
      prepare(this.large, keys * this.cell, queries * this.cell);
      this.draw();
    }

    draw() {
      const keys = this.data.shape[1];
      const pen = showPicture(this.large, this.picture, 1);
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
        words.push(`${this.data.queries[this.query]} attends most to ${this.data.keys[best]}: ${probability(this.at(layer, head, this.query, best))}`);
        if (this.data.rowStarts.length) words.push(`${probability(own.reduce((a, b) => a + b, 0))} of its attention is to the memory`);
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
  const stripSpans = strip.map(spanOf);
  // A finger leaves when it is lifted; what it marked stays until it taps elsewhere.
  function leave(event) {
    if (event.pointerType === "mouse") pick(null);
  }

  function pick(span) {
    const wanted = span || held;
    strip.forEach((token, place) => token.classList.toggle("active", Boolean(overlap(stripSpans[place], wanted))));
    for (const card of cards) {
      card.clear();
      if (wanted) card.mark((span) => overlap(span, wanted));
    }
    if (!wanted) return;
    for (const [box, left] of cards.flatMap((card) => card.moves())) box.scrollLeft = left;
    attention.forEach((one) => one.pick(wanted));
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
  for (const link of all(".contents [data-family]"))
    link.addEventListener("click", () => {
      if (off.delete(link.dataset.family)) showFamilies();
    });
  for (const reset of all(".chip.reset"))
    reset.addEventListener("click", () => {
      off.clear();
      showFamilies();
    });

  onRedraw(() => {
    cards.forEach((card) => card.redraw());
    attention.forEach((one) => one.paint());
  });
  // What a link leads to begins below the text, which stays in view.
  const measure = () => document.documentElement.style.setProperty("--strip", `${document.querySelector(".text-strip").offsetHeight}px`);
  measure();
  addEventListener("resize", () => {
    measure();
    cards.forEach((card) => card.redraw());
  });
});
