// Interactive charts: every figure of class "chart" is drawn from the JSON inside it.
"use strict";
(() => {
  const { color, onRedraw, axes, builders } = window.kinfolk;
  const element = (tag, name, text) => {
    const made = document.createElement(tag);
    made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const ink = () => {
    const names = ["paper", "card", "ink", "soft", "hair", "strong"];
    const shades = Object.fromEntries(names.map((name) => [name, color(name)]));
    return { ...shades, colors: Array.from({ length: 8 }, (_, index) => color(`c${index}`)) };
  };

  // The tooltip of curves stands at the top, beside the pointer, where it covers few of them.
  const beside = ([x], params, box, rect, { contentSize: [wide], viewSize: [all] }) => {
    const right = x + 16;
    return [right + wide <= all ? right : Math.max(0, Math.min(x - wide - 16, all - wide)), 0];
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
      this.state = { hidden: new Set(), logX: this.spec.logX, logY: this.spec.logY, window: null, focus: null };
      this.plot = figure.querySelector(".plot");
      this.builder = builders[this.spec.kind];
      this.addControls();
      this.legend = element("div", "legend");
      figure.insertBefore(this.legend, figure.querySelector("details"));
      this.chart = window.echarts.init(this.plot, null, { renderer: "svg", height: 100 });
      this.draw();
      figure.classList.add("drawn");
      figure.querySelector("details").open = false;
      new ResizeObserver(() => this.plot.clientWidth !== this.width && this.draw()).observe(figure);
      onRedraw(() => this.draw());
      if (this.builder.zooms) this.addZoom();
    }

    addControls() {
      const bar = element("div", "controls");
      if (this.spec.y) bar.append(element("span", "axis-title", this.spec.y));
      this.buttons = {};
      for (const [key, label] of [["logY", "log y"], ["logX", "log x"]])
        if (this.builder.zooms && this.builder.positive(this.spec, key)) bar.append(this.toggle(key, label));
      this.reset = element("button", "unzoom", "reset zoom");
      this.reset.type = "button";
      this.reset.hidden = true;
      this.reset.addEventListener("click", () => this.zoom(null));
      bar.append(this.reset);
      this.figure.prepend(bar);
    }

    toggle(key, label) {
      const button = element("button", "toggle", label);
      button.type = "button";
      button.setAttribute("aria-pressed", String(Boolean(this.state[key])));
      button.addEventListener("click", () => {
        this.state[key] = !this.state[key];
        button.setAttribute("aria-pressed", String(this.state[key]));
        this.zoom(null);
      });
      return button;
    }

    draw({ legend = true } = {}) {
      const shades = ink();
      this.plot.style.minWidth = this.builder.minWidth ? `${this.builder.minWidth(this.spec)}px` : "";
      this.width = this.plot.clientWidth;
      if (!this.width) return; // inside a closed <details>; drawn when it opens
      const built = this.builder.build(this.spec, this.state, this.width, shades);
      this.scales = built.scales;
      this.plot.style.height = `${built.height}px`;
      this.chart.resize({ width: this.width, height: built.height });
      this.chart.setOption({ animation: false, textStyle: { fontFamily: axes.FONT }, tooltip: this.tooltip(built), ...built.option }, true);
      if (legend) this.drawLegend(built.keys || [], shades);
    }

    tooltip(built) {
      return {
        trigger: built.tip ? "axis" : "item",
        confine: true,
        transitionDuration: 0,
        className: "tip",
        position: built.tip ? beside : undefined,
        axisPointer: { type: "line", lineStyle: { type: "solid", width: 1, color: built.soft, opacity: 0.5 }, label: { show: false } },
        formatter: (params) => {
          const rows = built.tip ? built.tip(params[0].axisValue) : built.itemTip(params);
          return this.tipContent(rows);
        },
      };
    }

    // Elements, not HTML: names are text wherever they come from.
    tipContent({ title, rows }) {
      const box = element("div", "tip-box");
      box.append(element("p", "tip-title", title));
      for (const row of rows) {
        const line = element("p", "tip-row");
        if (row.color) {
          const dot = element("span", "swatch");
          dot.style.background = row.color;
          line.append(dot);
        }
        line.append(element("span", "tip-name", row.name), element("span", "tip-value", row.value));
        box.append(line);
      }
      return box;
    }

    drawLegend(keys, shades) {
      const focused = [...this.legend.children].indexOf(document.activeElement);
      this.legend.replaceChildren(...keys.map((key) => this.legendKey(key, shades)));
      if (focused >= 0) this.legend.children[focused]?.focus();
    }

    legendKey(key, shades) {
      const { hidden } = this.state;
      const button = element("button", key.line ? "legend-key line" : "legend-key");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(key.name)));
      button.title = "Click to hide or show, double-click for this one alone";
      const swatch = element("span", "swatch");
      swatch.style.color = key.line || key.muted ? shades.soft : shades.colors[key.color];
      if (key.dashed) swatch.classList.add(["dashed", "dotted", "dash-dot"][key.dash || 0]);
      button.append(swatch, element("span", "key-name", key.name));
      if (key.value !== undefined) button.append(element("span", "key-value", key.value));
      const focus = (name) => {
        this.state.focus = hidden.has(key.name) || key.line ? null : name;
        this.draw({ legend: false });
      };
      button.addEventListener("mouseenter", () => focus(key.name));
      button.addEventListener("mouseleave", () => focus(null));
      button.addEventListener("click", () => {
        this.state.focus = null;
        if (!hidden.delete(key.name)) hidden.add(key.name);
        this.draw();
      });
      button.addEventListener("dblclick", () => {
        const others = this.builder.names(this.spec).filter((name) => name !== key.name);
        const alone = others.every((name) => hidden.has(name));
        hidden.clear();
        if (!alone) others.forEach((name) => hidden.add(name));
        this.draw();
      });
      return button;
    }

    // A page that chooses names for all its charts overrules what was clicked in one of them.
    hideOnly(names) {
      this.state.hidden = new Set(names);
      this.draw();
    }

    zoom(window) {
      this.state.window = window;
      this.reset.hidden = !window;
      this.draw();
    }

    // A drag selects a range of x, or a box where it is as tall as wide; a double-click resets.
    addZoom() {
      const band = element("div", "band");
      band.hidden = true;
      this.plot.append(band);
      let start = null;
      const place = (event) => {
        const box = this.plot.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      const area = (event) => {
        const [x, y] = place(event);
        const tall = event.pointerType === "mouse" && Math.abs(y - start[1]) > 40;
        return { left: Math.min(x, start[0]), right: Math.max(x, start[0]), top: Math.min(y, start[1]), bottom: Math.max(y, start[1]), tall };
      };
      this.plot.addEventListener("pointerdown", (event) => {
        if (event.button === 0 && this.chart.containPixel("grid", place(event))) start = place(event);
      });
      this.plot.addEventListener("pointermove", (event) => {
        if (!start) return;
        const { left, right, top, bottom, tall } = area(event);
        if (right - left < 6) return;
        this.plot.setPointerCapture(event.pointerId);
        this.chart.dispatchAction({ type: "hideTip" });
        band.hidden = false;
        Object.assign(band.style, { left: `${left}px`, width: `${right - left}px`, top: tall ? `${top}px` : "0", height: tall ? `${bottom - top}px` : "100%" });
      });
      this.plot.addEventListener("pointerup", (event) => {
        if (start && !band.hidden) this.zoomTo(area(event));
        start = null;
        band.hidden = true;
      });
      this.plot.addEventListener("pointercancel", () => {
        start = null;
        band.hidden = true;
      });
      this.plot.addEventListener("dblclick", () => this.zoom(null));
    }

    zoomTo({ left, right, top, bottom, tall }) {
      const { x, y } = this.scales;
      const [x0, y1] = this.chart.convertFromPixel("grid", [left, top]);
      const [x1, y0] = this.chart.convertFromPixel("grid", [right, bottom]);
      const clip = (value, scale) => Math.min(Math.max(scale.from(value), scale.low), scale.high);
      const window = { x: [clip(x0, x), clip(x1, x)] };
      if (tall) window.y = [clip(y0, y), clip(y1, y)];
      if (window.x[0] < window.x[1]) this.zoom(window);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const charts = [...document.querySelectorAll("figure.chart")].map((figure) => new Chart(figure));
    window.kinfolkCharts = {
      resize: () => charts.forEach((chart) => chart.draw()),
      hideNames: (names) => charts.forEach((chart) => chart.hideOnly(names)),
    };
  });
})();
