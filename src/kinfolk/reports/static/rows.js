// Charts of named rows (bars, scores with intervals), of a matrix of counts, and of bins.
"use strict";
(() => {
  const { axes, builders } = window.kinfolk;
  const { FONT, textWidth, wrap, compact, fixed, scale, range, axis } = axes;
  const NARROW = 560; // pixels below which names stand above their bars

  const text = (words, x, y, style) => ({ type: "text", silent: true, style: { text: words, x, y, verticalAlign: "middle", overflow: "truncate", ...style } });
  const halo = (ink) => ({ stroke: ink.paper, lineWidth: 3 }); // lines behind a text do not cross it
  const font = (size, weight = 400) => `${weight} ${size}px ${FONT}`;
  const hiddenAxis = (high, inverse) => ({ type: "value", min: 0, max: high, inverse, show: false });
  const label = (row, spec) => fixed(row.value, spec.digits);
  const interval = (row, spec) => (row.low === null || row.high === null || row.low === undefined ? "" : `${fixed(row.low, spec.digits)} to ${fixed(row.high, spec.digits)}`);

  const valueWidth = (row, spec) => textWidth(label(row, spec), 13.5, 600) + (interval(row, spec) ? textWidth(interval(row, spec), 12) + 14 : 0);

  const NAME = 17; // pixels of a line of a name
  const NOTE = 15; // pixels of a line of a note
  const MOST = 4; // lines of a name

  // Rows from top to bottom in pixels: headings of groups, then their rows; y is the height of the marks.
  const layout = (spec, width, wide, left) => {
    const rows = [];
    let y = 8 + 20 * spec.lines.length;
    let group = "";
    for (const row of spec.rows) {
      if (row.group && row.group !== group) {
        rows.push({ heading: row.group, y: y + (rows.length ? 22 : 10) });
        y += rows.length > 1 ? 40 : 28;
        group = row.group;
      }
      const lines = wrap(row.name, wide ? left - 14 : width - valueWidth(row, spec) - 18, 13.5, 600, MOST);
      const notes = wrap(row.note || "", wide ? left - 14 : width - 8, 12, 400, MOST);
      const more = NAME * (lines.length - 1) + NOTE * Math.max(0, notes.length - 1);
      const height = (wide ? (row.note ? 46 : 34) : row.note ? 64 : 48) + more;
      rows.push({ row, lines, notes, top: y, height, y: y + (wide ? height / 2 : 30 + NAME * (lines.length - 1)) });
      y += height;
    }
    return { rows, height: y + 4 };
  };

  const margins = (spec, width, wide) => {
    if (!wide) return { left: spec.kind === "bars" ? 2 : 12, right: 14 };
    const names = spec.rows.map((row) => Math.max(textWidth(row.name, 13.5, 600), textWidth(row.note, 12)));
    const values = spec.rows.map((row) => valueWidth(row, spec));
    return { left: Math.min(width * 0.36, Math.max(40, ...names) + 18), right: Math.max(40, ...values) + 18 };
  };

  const names = ({ lines, notes, top, y }, box, wide, ink) => {
    const tall = NAME * lines.length + NOTE * notes.length;
    const start = wide ? y - tall / 2 : top + 2;
    const place = wide ? [box.x - 14, "right"] : [2, "left"];
    const shared = { align: place[1], verticalAlign: "top", ...halo(ink) };
    return [
      text(lines.join("\n"), place[0], start, { font: font(13.5, 600), fill: ink.ink, lineHeight: NAME, ...shared }),
      ...(notes.length ? [text(notes.join("\n"), place[0], wide ? start + NAME * lines.length : y + 9, { font: font(12), fill: ink.soft, lineHeight: NOTE, ...shared })] : []),
    ];
  };

  const values = ({ row, top, y }, spec, wide, ink, width) => {
    const bounds = interval(row, spec);
    const at = wide ? y : top + 10;
    const number = { font: font(13.5, 600), fill: ink.ink, align: "right", ...halo(ink) };
    if (!bounds) return [text(label(row, spec), width - 2, at, number)];
    const wideBounds = textWidth(bounds, 12);
    return [
      text(bounds, width - 2, at, { font: font(12), fill: ink.soft, align: "right", ...halo(ink) }),
      text(label(row, spec), width - wideBounds - 12, at, number),
    ];
  };

  const bar = (row, y, x, api, wide, ink) => {
    if (row.value === null) return [];
    const [from] = api.coord([Math.max(0, x.low), 0]);
    const [to] = api.coord([row.value, 0]);
    const thick = wide ? 20 : 12;
    const color = ink.colors[row.color];
    const style = row.muted ? { fill: color, fillOpacity: 0.22, stroke: color, lineWidth: 1.2, lineDash: [4, 3] } : { fill: color };
    return [{ type: "rect", shape: { x: Math.min(from, to), width: Math.max(1, Math.abs(to - from)), y: y - thick / 2, height: thick, r: 2 }, style }];
  };

  const whiskers = (row, y, x, api, wide, ink) => {
    const color = row.muted ? ink.soft : ink.colors[row.color];
    const parts = [];
    const at = (value) => api.coord([value, 0])[0];
    if (row.low !== null && row.high !== null) {
      const style = { stroke: color, lineWidth: 2.4, opacity: row.muted ? 0.4 : 0.75, lineCap: "round" };
      parts.push({ type: "line", shape: { x1: at(row.low), x2: at(row.high), y1: y, y2: y }, style });
      for (const end of [row.low, row.high]) parts.push({ type: "line", shape: { x1: at(end), x2: at(end), y1: y - 4, y2: y + 4 }, style });
    }
    if (row.value !== null) parts.push({ type: "circle", shape: { cx: at(row.value), cy: y, r: 5.5 }, style: { fill: row.muted ? ink.paper : color, stroke: color, lineWidth: 2 } });
    return parts;
  };

  // Names stand between the marks of a narrow chart: a line is drawn where the marks are.
  const stretches = (rows, wide, top, height) => {
    const marked = rows.filter(({ row }) => row);
    if (wide || !marked.length) return [[top, height]];
    return [[top, Math.max(top, marked[0].top - 2)], ...marked.map(({ y }) => [y - 10, y + 9])];
  };

  const lineMarks = (spec, x, api, height, ink, box, rows, wide) =>
    spec.lines.flatMap((line, index) => {
      const [across] = api.coord([line.value, 0]);
      const top = 8 + 20 * index;
      const style = { stroke: ink.ink, opacity: 0.7, lineWidth: 1.4, lineDash: index % 2 ? [2, 3] : [6, 4] };
      const words = `${line.name} ${fixed(line.value, spec.digits)}`;
      const before = across - box.x > textWidth(words, 12) + 10 || across > box.x + box.width / 2;
      const room = before ? across - 10 : box.x + box.width - across - 8;
      return [
        ...stretches(rows, wide, top, height).map(([y1, y2]) => ({ type: "line", silent: true, z2: 5, shape: { x1: across, x2: across, y1, y2 }, style })),
        text(words, before ? across - 7 : across + 7, top + 8, { font: font(12), fill: ink.soft, align: before ? "right" : "left", width: room, ...halo(ink) }),
      ];
    });

  // Differences are to the left or to the right of 0.
  const zeroMark = (spec, api, height, ink, rows, wide) => {
    if (!spec.zero) return [];
    const [across] = api.coord([0, 0]);
    return stretches(rows, wide, 0, height).map(([y1, y2]) => ({ type: "line", silent: true, shape: { x1: across, x2: across, y1, y2 }, style: { stroke: ink.soft, lineWidth: 1.2 } }));
  };

  const rowAxis = (spec, x, ink) => {
    const made = axis(x, ink, { name: spec.x, nameLocation: "middle", nameGap: 28 });
    if (x.ticks[0] === x.low) made.axisLabel.alignMinLabel = "left"; // a 0 at the edge is not cut
    return made;
  };

  const rowChart = (draw, extent) => ({
    zooms: false,
    names: () => [],
    build(whole, state, width, ink) {
      const spec = { ...whole, rows: whole.rows.filter((row) => !state.hidden.has(row.name)), lines: whole.lines.filter((line) => !state.hidden.has(line.name)) };
      const wide = width >= NARROW;
      const x = scale(...extent(spec), false, Math.max(3, Math.min(7, width / 110)));
      const { left, right } = margins(spec, width, wide);
      const { rows, height } = layout(spec, width, wide, left);
      const marks = (params, api) => {
        const { row, y, top, height: tall } = rows[params.dataIndex];
        if (!row) return null;
        const hover = { type: "rect", shape: { x: 0, width, y: top, height: tall }, style: { fill: ink.ink, opacity: 0 } };
        return { type: "group", children: [hover, ...draw(row, y, x, api, wide, ink)] };
      };
      const words = (params) => {
        const { row, heading, y } = rows[params.dataIndex];
        const place = rows[params.dataIndex];
        if (!row) return text(heading, 2, y, { font: font(12, 600), fill: ink.soft, width: width - 4, ...halo(ink) });
        return { type: "group", children: [...names(place, params.coordSys, wide, ink), ...values(place, spec, wide, ink, width)] };
      };
      const places = rows.map(({ y }) => [x.low, y]);
      return {
        height: height + 48,
        scales: { x },
        option: {
          grid: { left, right, top: 0, bottom: 48, outerBoundsMode: "none" },
          xAxis: rowAxis(spec, x, ink),
          yAxis: hiddenAxis(height, true),
          series: [
            { type: "custom", z: 3, data: places, renderItem: marks },
            { type: "custom", z: 5, silent: true, data: places, renderItem: words },
            { type: "custom", z: 4, silent: true, data: [[x.low, 0]], renderItem: (params, api) => ({ type: "group", children: lineMarks(spec, x, api, height, ink, params.coordSys, rows, wide) }) },
            { type: "custom", z: 1, silent: true, data: [[x.low, 0]], renderItem: (params, api) => ({ type: "group", children: zeroMark(spec, api, height, ink, rows, wide) }) },
          ],
        },
        itemTip: ({ dataIndex }) => {
          const { row, heading } = rows[dataIndex];
          if (!row) return { title: heading, rows: [] };
          const bounds = interval(row, spec);
          const more = [bounds && { name: "95 % interval", value: bounds }, row.note && { name: row.note, value: "" }];
          return { title: row.name, rows: [{ name: spec.x, color: ink.colors[row.color], value: label(row, spec) }, ...more.filter(Boolean)] };
        },
      };
    },
  });

  const fromZero = (spec) => {
    const known = [...spec.rows, ...spec.lines].map((row) => row.value).filter((value) => value !== null);
    const high = Math.max(0, ...known);
    const low = Math.min(0, ...known);
    return high === low ? [0, 1] : [low * 1.04, high * 1.04];
  };
  const around = (spec) => {
    const known = spec.rows.flatMap((row) => [row.value, row.low, row.high]).filter((value) => value !== null);
    return range([...known, ...spec.lines.map((line) => line.value), ...(spec.zero ? [0] : [])], false, 0.06);
  };

  const CELL = 34; // pixels, the narrowest column of a matrix
  const HEAD = 150; // pixels, the longest line of a turned name
  const namesWidth = (spec) => Math.min(150, Math.max(...spec.rows.map((name) => textWidth(name, 13, 600))) + 16);
  const heatmap = {
    zooms: false,
    names: () => [],
    minWidth: (spec) => namesWidth(spec) + CELL * spec.columns.length,
    build(spec, state, width, ink) {
      const left = namesWidth(spec);
      const side = Math.min(96, (width - left) / spec.columns.length);
      const named = spec.rows.map((name) => wrap(name, left - 12, 13, 600, MOST));
      const tall = Math.max(Math.min(side, 52), 15 * Math.max(...named.map((lines) => lines.length)) + 4);
      const turned = Math.max(...spec.columns.map((name) => textWidth(name, 12))) > side - 8;
      const columns = spec.columns.map((name) => (turned ? wrap(name, HEAD, 12, 400, Math.max(1, Math.floor(side / 14))) : [name]));
      const top = 26 + (turned ? Math.max(...columns.flat().map((line) => textWidth(line, 12))) + 6 : 18);
      const cells = spec.counts.flatMap((counts, row) => counts.map((count, column) => ({ row, column, count, total: counts.reduce((a, b) => a + b, 0) })));
      const cell = ({ row, column, count, total }) => {
        const [x, y] = [left + side * column, top + tall * row];
        const color = spec.rows[row] === spec.columns[column] ? ink.colors[2] : ink.colors[1];
        const rect = { type: "rect", shape: { x: x + 1, y: y + 1, width: side - 2, height: tall - 2, r: 3 }, style: { fill: count ? color : ink.card, fillOpacity: count ? 0.14 + (0.76 * count) / total : 1 } };
        const shown = count ? [text(compact(count), x + side / 2, y + tall / 2, { font: font(side < 42 ? 11 : 13.5, 600), fill: count > total / 2 ? ink.strong : ink.ink, align: "center" })] : [];
        return { type: "group", children: [rect, ...shown] };
      };
      const heads = spec.columns.map((name, index) => {
        const style = { font: font(12), fill: ink.soft, lineHeight: 14 };
        if (!turned) return text(name, left + side * (index + 0.5), top - 12, { ...style, align: "center" });
        return { ...text(columns[index].join("\n"), 0, 0, style), x: left + side * (index + 0.5), y: top - 6, rotation: Math.PI / 2 };
      });
      const sides = spec.rows.map((name, index) => text(named[index].join("\n"), left - 10, top + tall * (index + 0.5), { font: font(13, 600), fill: ink.ink, align: "right", lineHeight: 15 }));
      const title = text(`${spec.x} →`, left, 10, { font: font(12.5), fill: ink.soft });
      return {
        height: top + tall * spec.rows.length + 8,
        option: {
          grid: { left: 0, right: 0, top: 0, bottom: 0, outerBoundsMode: "none" },
          xAxis: hiddenAxis(1, false),
          yAxis: hiddenAxis(1, false),
          series: [
            { type: "custom", data: cells.map(() => [0, 0]), renderItem: (params) => cell(cells[params.dataIndex]) },
            { type: "custom", silent: true, data: [[0, 0]], renderItem: () => ({ type: "group", children: [title, ...heads, ...sides] }) },
          ],
        },
        itemTip: ({ dataIndex }) => {
          const { row, column, count, total } = cells[dataIndex];
          return {
            title: `${fixed(count, 0)} of ${fixed(total, 0)}${total ? `, ${fixed((100 * count) / total, 1)} %` : ""}`,
            rows: [{ name: spec.y, value: spec.rows[row] }, { name: spec.x, value: spec.columns[column] }],
          };
        },
      };
    },
  };

  const histogram = {
    zooms: false,
    names: () => [],
    build(spec, state, width, ink) {
      const count = spec.bins.length;
      const edges = [...spec.bins.map((bin) => bin.low), ...spec.bins.slice(-1).map((bin) => bin.high)];
      const high = spec.diagonal ? 1 : Math.max(...spec.bins.map((bin) => bin.value || 0)) * 1.06 || 1;
      const x = { ...scale(0, count, false, count), ticks: edges.map((_, index) => index) };
      const y = scale(0, high, false, 5);
      if (!spec.digits) y.ticks = y.ticks.filter(Number.isInteger);
      const left = Math.max(24, ...y.ticks.map((tick) => textWidth(compact(tick), 12))) + 12;
      const xAxis = axis(x, ink, { name: spec.x, nameLocation: "middle", nameGap: 30, splitLine: { show: false }, axisLine: { show: true, lineStyle: { color: ink.soft, opacity: 0.6 } } });
      xAxis.axisLabel.formatter = (index) => edges[Math.round(index)] ?? "";
      const render = (params, api) => {
        const bin = spec.bins[params.dataIndex];
        if (bin.value === null) return null;
        const [from, top] = api.coord([params.dataIndex, bin.value]);
        const [to, floor] = api.coord([params.dataIndex + 1, 0]);
        const rect = { type: "rect", shape: { x: from + 1.5, width: to - from - 3, y: top, height: floor - top, r: [2, 2, 0, 0] }, style: { fill: ink.colors[0] } };
        const lone = !spec.bins[params.dataIndex - 1]?.note && !spec.bins[params.dataIndex + 1]?.note;
        const room = (to - from) * (lone ? 1.6 : 1);
        const count = Number((bin.note || "").replaceAll(",", ""));
        const words = [bin.note, Number.isFinite(count) ? compact(+count.toPrecision(2)) : ""].find((note) => textWidth(note, 11.5) < room);
        const note = bin.note && words ? [text(words, (from + to) / 2, Math.max(9, top - 9), { font: font(11.5), fill: ink.soft, align: "center", stroke: ink.paper, lineWidth: 3 })] : [];
        return { type: "group", children: [rect, ...note] };
      };
      const diagonal = (params, api) => {
        const [x1, y1] = api.coord([0, 0]);
        const [x2, y2] = api.coord([count, 1]);
        return { type: "line", silent: true, shape: { x1, y1, x2, y2 }, style: { stroke: ink.ink, opacity: 0.7, lineWidth: 1.4, lineDash: [6, 4] } };
      };
      return {
        height: 300,
        option: {
          grid: { left, right: 16, top: 18, bottom: 46, outerBoundsMode: "none" },
          xAxis,
          yAxis: axis(y, ink),
          series: [
            { type: "custom", z: 3, data: spec.bins.map((bin, index) => [index, bin.value || 0]), renderItem: render },
            ...(spec.diagonal ? [{ type: "custom", z: 2, silent: true, data: [[0, 0]], renderItem: diagonal }] : []),
          ],
        },
        itemTip: ({ dataIndex }) => {
          const bin = spec.bins[dataIndex];
          const rows = [{ name: spec.y, value: fixed(bin.value, spec.digits) }];
          if (bin.note && spec.note) rows.push({ name: spec.note, value: bin.note });
          return { title: `${bin.low} to ${bin.high}`, rows };
        },
      };
    },
  };

  Object.assign(builders, { bars: rowChart(bar, fromZero), interval: rowChart(whiskers, around), heatmap, histogram });
})();
