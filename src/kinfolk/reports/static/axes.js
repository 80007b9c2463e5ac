// Numbers and axes: formats, round ticks, linear and logarithmic scales, ranges of data.
"use strict";
window.kinfolk.axes = (() => {
  const canvas = document.createElement("canvas").getContext("2d");
  const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

  const textWidth = (text, size = 13, weight = 400) => {
    canvas.font = `${weight} ${size}px ${FONT}`;
    return Math.ceil(canvas.measureText(text).width);
  };

  // Lines of a width: broken between words, else behind a slash or the like, else anywhere; at most so many.
  const wrap = (text, width, size, weight, most) => {
    const fits = (part) => textWidth(part, size, weight) <= width;
    const pieces = (word) => word.match(/[^/=,._-]*[/=,._-]+|[^/=,._-]+/g).flatMap((piece) => (fits(piece) ? [piece] : [...piece]));
    const lines = [];
    for (const word of text.split(/\s+/).filter(Boolean))
      (fits(word) ? [word] : pieces(word)).forEach((part, index) => {
        const longer = lines.length ? `${lines.at(-1)}${index ? "" : " "}${part}` : part;
        if (lines.length && fits(longer)) lines[lines.length - 1] = longer;
        else lines.push(part);
      });
    if (lines.length <= most) return lines;
    let last = lines[most - 1];
    while (last && !fits(`${last}…`)) last = last.slice(0, -1);
    return [...lines.slice(0, most - 1), `${last}…`];
  };

  const signed = (write) => (...given) => write(...given).replaceAll("-", "−");

  const compact = signed((value) => {
    if (Number.isInteger(value) && Math.abs(value) < 1e4) return value.toLocaleString("en");
    for (const [power, letter] of [[1e15, "P"], [1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(value) >= power) return `${+(value / power).toPrecision(4)}${letter}`;
    return String(+value.toPrecision(4));
  });

  const fixed = signed((value, digits) => {
    if (value === null || !Number.isFinite(value)) return "–";
    if (Math.abs(value) >= 1e6) return compact(value);
    if (digits === null) {  // as many as tell it from 0
      const size = Math.abs(value);
      if (size && size < 1e-4) return value.toExponential(1);
      if (size && size < 0.01) return String(+value.toPrecision(2));
      return (value || 0).toFixed(3);
    }
    return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  });

  const linearTicks = (low, high, count) => {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((nice) => nice * power).find((each) => each >= rough * 0.9);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i <= high / step + 1e-9; i++) ticks.push(+(i * step).toPrecision(12));
    return ticks;
  };

  const logTicks = (low, high, count) => {
    const decades = Math.log10(high / low);
    if (decades < 0.5) return linearTicks(low, high, count);
    const factors = decades < 1.2 ? [1, 1.5, 2, 3, 4, 5, 7] : decades <= count / 2 ? [1, 2, 5] : [1];
    const stride = Math.max(1, Math.ceil(decades / count));
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += stride)
      for (const factor of factors) {
        const tick = +(factor * 10 ** power).toPrecision(12);
        if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push(tick);
      }
    return ticks.length > 1 ? ticks : linearTicks(low, high, count);
  };

  // A scale has the axis of ECharts work on transformed values, so that ticks are round on both kinds.
  const scale = (low, high, log, count) => ({
    low,
    high,
    to: log ? Math.log10 : (value) => value,
    from: log ? (value) => 10 ** value : (value) => value,
    ticks: (log ? logTicks : linearTicks)(low, high, count),
  });

  // Lowest and highest value with a margin; never an empty range.
  const range = (values, log, margin) => {
    const known = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
    if (!known.length) return log ? [1, 10] : [0, 1];
    let [low, high] = known.reduce(([a, b], value) => [Math.min(a, value), Math.max(b, value)], [Infinity, -Infinity]);
    if (low === high) return log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
    if (log) {
      const factor = (high / low) ** margin;
      return [low / factor, high * factor];
    }
    if (low > 0 && low < high / 20 && margin === 0) low = 0; // a run that starts at step 1 starts at the axis
    return [low - margin * (high - low), high + margin * (high - low)];
  };

  const percentile = (sorted, fraction) => sorted[Math.round(fraction * (sorted.length - 1))];

  const axis = (scale, ink, more = {}) => ({
    type: "value",
    min: scale.to(scale.low),
    max: scale.to(scale.high),
    axisLine: { show: false },
    axisTick: { show: false, customValues: scale.ticks.map(scale.to) },
    axisLabel: {
      customValues: scale.ticks.map(scale.to),
      formatter: (value) => compact(+scale.from(value).toPrecision(10)),
      color: ink.soft,
      fontSize: 12,
      fontFamily: FONT,
      hideOverlap: true,
    },
    splitLine: { lineStyle: { color: ink.hair, width: 1 } },
    nameTextStyle: { color: ink.soft, fontSize: 12.5, fontFamily: FONT },
    ...more,
  });

  return { FONT, textWidth, wrap, compact, fixed, scale, range, percentile, axis };
})();
