// Charts on two axes of numbers: curves with reference lines, and named points.
"use strict";
window.kinfolk.builders = (() => {
  const { FONT, textWidth, wrap, compact, fixed, scale, range, percentile, axis } = window.kinfolk.axes;
  const BANDS = 4; // curves up to which each shows its interval; more would cover each other
  const FEW = 8; // values of x up to which each has its tick
  const MARKED = 40; // points up to which each has a mark
  const DASHES = [[7, 4], [2, 4], [12, 4, 2, 4]]; // of baselines, which share a color
  const SHIFTS = [0, -17, 17, -34, 34, -51, 51, -68, 68, -85, 85]; // pixels from a point up or down to its name

  const inside = (value, bounds) => !bounds || (value >= bounds[0] && value <= bounds[1]);
  const visible = (entries, state) => entries.filter((entry) => !state.hidden.has(entry.of || entry.name));
  const halo = (ink) => ({ textBorderColor: ink.paper, textBorderWidth: 4, stroke: ink.paper, lineWidth: 4 });

  const grid = (xScale, yScale) => {
    const labels = yScale.ticks.map((tick) => textWidth(compact(tick), 12));
    const last = textWidth(compact(xScale.ticks.at(-1) ?? 0), 12);
    return { left: Math.max(20, ...labels) + 12, right: Math.max(8, last / 2 + 4), top: 10, bottom: 46, outerBoundsMode: "none" };
  };

  const touch = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;

  // A dashed line across the chart, its name at an end where no point and no other name is near.
  const referenceLine = (line, x, y, ink, points, names) => ({
    type: "custom",
    name: line.name,
    silent: true,
    z: 4,
    data: [[x.to(x.low), y.to(line.value)]],
    renderItem: (params, api) => {
      const level = api.coord([x.to(x.low), y.to(line.value)])[1];
      const { x: left, width: wide } = params.coordSys;
      const right = left + wide;
      const rule = { type: "line", shape: { x1: left, x2: right, y1: level, y2: level }, style: { stroke: ink.ink, opacity: 0.65, lineWidth: 1.4, lineDash: [6, 4] } };
      const label = textWidth(line.name, 12) + 8;
      const pixels = points.map((point) => api.coord([x.to(point[0]), y.to(point[1])]));
      const place = (start) => ({ x: start, y: level - 20, width: label, height: 18 });
      names.delete(line.name);
      const free = (start) => start >= left && start + label <= right && !pixels.some(([a, b]) => a > start - 4 && a < start + label && b > level - 22 && b < level + 4) && ![...names.values()].some((other) => touch(other, place(start)));
      const start = [right - label, left + 4, (left + right - label) / 2].find(free);
      if (start === undefined) return rule; // the legend has the name
      names.set(line.name, place(start));
      return { type: "group", children: [rule, { type: "text", style: { text: line.name, x: start + 4, y: level - 5, verticalAlign: "bottom", font: `12px ${FONT}`, fill: ink.soft, ...halo(ink) } }] };
    },
  });

  const drawnLines = (lines, x, y, ink, points) => {
    const names = new Map(); // of a line -> where it stands
    return lines.filter((line) => line.value >= y.low && line.value <= y.high && (y.to !== Math.log10 || line.value > 0)).map((line) => referenceLine(line, x, y, ink, points, names));
  };

  const nearest = (points, x) => {
    let best = null;
    for (const point of points) if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
    return best;
  };

  // A step without decimals; a learning rate with those it has.
  const whole = (value) => (value !== 0 && Math.abs(value) < 1 ? compact(value) : fixed(Math.round(value * 1e4) / 1e4, 0));

  const place = (spec, x) => `${spec.x} ${whole(x)}${spec.names.length ? `: ${spec.names[x - 1]}` : ""}`;

  const valueAt = (series, x, digits) => {
    const [at, value] = nearest(series.points, x);
    const bounds = series.band.find(([place, low, high]) => place === at && low !== null && high !== null);
    return fixed(value, digits) + (bounds ? ` (${fixed(bounds[1], digits)} to ${fixed(bounds[2], digits)})` : "");
  };

  // A range around the same middle that spans at least a share of the highest value.
  const widen = ([low, high], share, values) => {
    const missing = (share * Math.max(...values.map(Math.abs)) - (high - low)) / 2;
    return missing > 0 ? [low - missing, high + missing] : [low, high];
  };

  const lineScales = (spec, state, width) => {
    const shown = visible(spec.series, state);
    const xs = shown.flatMap((series) => series.points.map((point) => point[0]));
    const margin = shown.some((series) => series.band.length && series.band.length <= FEW) ? 0.06 : 0;
    const x = scale(...(state.window?.x || range(xs, state.logX, margin)), state.logX, Math.max(3, Math.min(8, width / 90)));
    const places = [...new Set(xs)].filter((value) => value >= x.low && value <= x.high);
    if (state.logX && places.length <= FEW) x.ticks = places; // 16, 64, 256 labels
    if (xs.every(Number.isInteger)) x.ticks = x.ticks.filter(Number.isInteger); // layers, steps
    const heights = state.window?.x ? [] : visible(spec.lines, state).map((line) => line.value);
    for (const series of shown) {
      const soft = series.points.filter((point) => inside(point[0], state.window?.x)).map((point) => point[1]);
      const raw = series.raw.filter((point) => inside(point[0], state.window?.x)).map((point) => point[1]).sort((a, b) => a - b);
      const bounds = series.band.filter((each) => inside(each[0], state.window?.x)).flatMap((each) => each.slice(1));
      heights.push(...soft, ...bounds.filter((bound) => bound !== null));
      if (raw.length) heights.push(percentile(raw, 0.01), percentile(raw, 0.99)); // single spikes would flatten the rest
    }
    const y = scale(...(state.window?.y || widen(range(heights, state.logY, 0.06), spec.leastSpan, heights)), state.logY, 5);
    return { x, y, shown };
  };

  const vivid = (entry, state) => (!state.focus || state.focus === (entry.of || entry.name) ? 1 : 0.2);
  const shade = (entry, ink) => (entry.muted ? ink.soft : ink.colors[entry.color]);

  // The interval around a curve: a band, or whiskers where it has few points.
  const band = (series, { x, y }, ink) => {
    const known = series.band.filter(([, low, high]) => low !== null && high !== null && (y.to !== Math.log10 || low > 0));
    if (!known.length) return [];
    const color = shade(series, ink);
    const renderItem = (params, api) => {
      const upper = known.map(([at, , high]) => api.coord([x.to(at), y.to(high)]));
      const lower = known.map(([at, low]) => api.coord([x.to(at), y.to(low)]));
      if (known.length > FEW) return { type: "polygon", shape: { points: [...upper, ...lower.reverse()] }, style: { fill: color, opacity: 0.13 } };
      const whisker = ([across, high], index) => ({ type: "line", shape: { x1: across, x2: across, y1: high, y2: lower[index][1] }, style: { stroke: color, lineWidth: 1.6, opacity: 0.6, lineCap: "round" } });
      return { type: "group", children: upper.map(whisker) };
    };
    return [{ type: "custom", silent: true, z: 1, data: [[x.to(x.low), y.to(y.low)]], renderItem }];
  };

  // Curves with whiskers stand beside each other, a few pixels apart.
  const beside = (shown, x, width) => {
    const few = shown.filter((series) => series.band.length && series.band.length <= FEW);
    const room = (0.4 * width) / Math.max(2, ...few.map((series) => series.band.length));
    const step = (Math.min(6, room / Math.max(1, few.length)) * (x.to(x.high) - x.to(x.low))) / width;
    return (series) => {
      const shift = few.includes(series) ? step * (few.indexOf(series) - (few.length - 1) / 2) : 0;
      return { ...x, to: (value) => x.to(value) + shift };
    };
  };

  const dash = (series, spec) => (series.muted ? spec.series.filter((each) => each.muted).indexOf(series) % DASHES.length : 0);

  const curve = (series, points, style, scales, ink) => ({
    type: "line",
    name: series.name,
    data: points.map(([a, b]) => [scales.x.to(a), scales.y.to(b)]),
    symbol: "circle",
    clip: true,
    lineStyle: { color: shade(series, ink), cap: "round", join: "round", type: series.dashed || series.muted ? DASHES[0] : "solid", ...style },
    itemStyle: { color: shade(series, ink) },
    emphasis: { disabled: true },
  });

  const line = {
    zooms: true,
    names: (spec) => [...spec.series, ...spec.lines].map((entry) => entry.name),
    positive: (spec, key) => spec.series.some((series) => series.points.length > 1) && spec.series.every((series) => series.points.every((point) => point[key === "logX" ? 0 : 1] > 0)),
    build(spec, state, width, ink) {
      const { x, y, shown } = lineScales(spec, state, width);
      const moved = beside(shown, x, width);
      const series = shown.flatMap((each) => [
        ...(each.raw.length ? [{ ...curve(each, each.raw, { width: 1, opacity: 0.3 * vivid(each, state) }, { x, y }, ink), symbol: "none", silent: true, z: 2 }] : []),
        { ...curve(each, each.points, { width: 2.2, opacity: vivid(each, state), ...(each.muted && { type: DASHES[dash(each, spec)] }) }, { x: moved(each), y }, ink), showSymbol: spec.markers || each.points.length <= MARKED, symbolSize: each.points.length === 1 ? 9 : 6, z: 3 },
      ]);
      return {
        height: width < 520 ? 260 : 340,
        scales: { x, y },
        soft: ink.soft,
        option: {
          grid: grid(x, y),
          xAxis: axis(x, ink, { name: spec.x, nameLocation: "middle", nameGap: 30, splitLine: { show: false }, axisLine: { show: true, onZero: false, lineStyle: { color: ink.soft, opacity: 0.6 } } }),
          yAxis: axis(y, ink),
          series: [...shown.filter((each) => (state.focus ? each.name === state.focus : shown.length <= BANDS || each.band.length <= FEW)).flatMap((each) => band(each, { x: moved(each), y }, ink)), ...series, ...drawnLines(visible(spec.lines, state), x, y, ink, shown.flatMap((each) => each.points))],
        },
        // Highest first, as the curves are.
        tip: (at) => ({
          title: place(spec, nearest(shown.flatMap((each) => each.points), x.from(at))[0]),
          rows: [
            ...shown.filter((each) => each.points.length).sort((a, b) => nearest(b.points, x.from(at))[1] - nearest(a.points, x.from(at))[1]).map((each) => ({ name: each.name, color: shade(each, ink), value: valueAt(each, x.from(at), spec.digits) })),
            ...visible(spec.lines, state).map((each) => ({ name: each.name, value: fixed(each.value, spec.digits) })),
          ],
        }),
        keys: [
          ...spec.series.filter((each) => !each.of).map((each) => ({ ...each, dashed: each.dashed || each.muted, dash: dash(each, spec), value: each.last === null ? "no data" : fixed(each.last, spec.digits) })),
          ...spec.lines.map((each) => ({ ...each, line: true, dashed: true, value: fixed(each.value, spec.digits) })),
        ],
      };
    },
  };

  // Where the name of each point stands: beside it, else higher or lower with a line to it. It covers no other name and
  // no point, and an interval only where nothing else is free; a name without a place is in the legend alone.
  const placeNames = (points, box) => {
    const dots = points.map((point) => ({ x: point.across - 8, y: point.level - 8, width: 16, height: 16 }));
    const whiskers = points.filter((point) => point.span).map((point) => ({ point, x: point.across - 3, y: point.span[0], width: 6, height: point.span[1] - point.span[0] }));
    const taken = [];
    const inside = (place) => place.x >= box.left && place.x + place.width <= box.right && place.y >= box.top && place.y + place.height <= box.bottom;
    return points.flatMap((point, index) => {
      if (point.across < box.left || point.across > box.right || point.level < box.top || point.level > box.bottom) return [];
      const { lines, width } = point;
      const height = 15 * lines.length;
      const right = { x: point.across + 11, align: "left" };
      const left = { x: point.across - 11 - width, align: "right" };
      const sides = point.across > (box.left + box.right) / 2 ? [left, right] : [right, left];
      const places = SHIFTS.flatMap((shift) => sides.map((side) => ({ ...side, y: point.level - height / 2 + shift, width, height, shift })));
      const free = (place) => inside(place) && !taken.some((other) => touch(other, place)) && !dots.some((dot, other) => other !== index && touch(dot, place));
      const clear = (place) => free(place) && !whiskers.some((whisker) => whisker.point !== point && touch(whisker, place));
      const place = places.find(clear) || places.find(free);
      if (!place) return [];
      taken.push(place);
      return [{ point, place, lines }];
    });
  };

  const nameMark = ({ point, place, lines }, ink) => {
    const near = place.align === "left" ? place.x : place.x + place.width;
    const words = { type: "text", style: { text: lines.join("\n"), x: near, y: place.y, align: place.align, verticalAlign: "top", lineHeight: 15, font: `12px ${FONT}`, fill: ink.ink, stroke: ink.paper, lineWidth: 3 } };
    if (Math.abs(place.shift) < 15 * lines.length) return [words];
    const end = place.y + place.height / 2;
    return [{ type: "line", shape: { x1: point.across, y1: point.level, x2: near + (place.align === "left" ? -2 : 2), y2: end }, style: { stroke: ink.soft, lineWidth: 1, opacity: 0.7 } }, words];
  };

  const scatter = {
    zooms: true,
    names: (spec) => spec.points.map((entry) => entry.name),
    positive: (spec, key) => spec.points.length > 1 && spec.points.every((point) => point[key === "logX" ? "x" : "y"] > 0),
    build(spec, state, width, ink) {
      const shown = visible(spec.points, state);
      const ys = shown.flatMap((point) => [point.y, point.low ?? point.y, point.high ?? point.y]);
      const x = scale(...(state.window?.x || range(shown.map((point) => point.x), state.logX, 0.12)), state.logX, Math.max(3, Math.min(8, width / 90)));
      const y = scale(...(state.window?.y || range(ys, state.logY, 0.1)), state.logY, 5);
      const height = width < 520 ? 320 : 380;
      const frame = grid(x, y);
      const box = { left: frame.left, right: width - frame.right, top: frame.top, bottom: height - frame.bottom };
      const across = (value) => box.left + ((x.to(value) - x.to(x.low)) / (x.to(x.high) - x.to(x.low))) * (box.right - box.left);
      const level = (value) => box.bottom - ((y.to(value) - y.to(y.low)) / (y.to(y.high) - y.to(y.low))) * (box.bottom - box.top);
      const named = shown.map((point) => {
        const lines = wrap(point.name, width * 0.4, 12, 400, 3);
        const span = point.low === null || point.high === null ? null : [level(point.high), level(point.low)];
        return { across: across(point.x), level: level(point.y), span, lines, width: Math.max(...lines.map((line) => textWidth(line, 12))) };
      });
      const names = placeNames(named, box);
      const at = (point, height) => [x.to(point.x), y.to(height)];
      const whiskers = shown.filter((point) => point.low !== null && point.high !== null);
      return {
        height,
        scales: { x, y },
        option: {
          grid: frame,
          xAxis: axis(x, ink, { name: spec.x, nameLocation: "middle", nameGap: 30, axisLine: { show: true, onZero: false, lineStyle: { color: ink.soft, opacity: 0.6 } } }),
          yAxis: axis(y, ink),
          series: [
            {
              type: "custom",
              silent: true,
              z: 2,
              clip: true,
              data: whiskers.map((point) => at(point, point.y)),
              renderItem: (params, api) => {
                const point = whiskers[params.dataIndex];
                const [across, low] = api.coord(at(point, point.low));
                const high = api.coord(at(point, point.high))[1];
                return { type: "line", shape: { x1: across, x2: across, y1: low, y2: high }, style: { stroke: shade(point, ink), lineWidth: 2, opacity: point.muted ? 0.35 : 0.6 } };
              },
            },
            {
              type: "scatter",
              z: 3,
              symbolSize: 12,
              data: shown.map((point) => ({
                value: at(point, point.y),
                itemStyle: { color: point.muted ? ink.paper : ink.colors[point.color], borderColor: shade(point, ink), borderWidth: 2 },
              })),
            },
            { type: "custom", silent: true, z: 4, data: [[x.to(x.low), y.to(y.low)]], renderItem: () => ({ type: "group", children: names.flatMap((name) => nameMark(name, ink)) }) },
          ],
        },
        itemTip: ({ dataIndex }) => {
          const point = shown[dataIndex];
          const rows = [{ name: spec.x, value: compact(point.x) }, { name: spec.y, value: fixed(point.y, spec.digits) }];
          if (point.low !== null && point.high !== null) rows.push({ name: "95 % interval", value: `${fixed(point.low, spec.digits)} to ${fixed(point.high, spec.digits)}` });
          if (point.note) rows.push({ name: point.note, value: "" });
          return { title: point.name, rows };
        },
        keys: spec.points,
      };
    },
  };

  return { line, scatter };
})();
