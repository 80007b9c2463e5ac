// What is wrong with a page as it looks now: a list of "kind: text".
() => {
  const wrong = [];
  const shown = (node) => node.checkVisibility({ visibilityProperty: true }) && !node.closest("[hidden]");
  const pixels = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });

  // Red, green, blue and opacity of a CSS color, 0 to 1.
  const known = new Map();
  const color = (css) => {
    if (!known.has(css)) {
      pixels.clearRect(0, 0, 1, 1);
      pixels.fillStyle = css;
      pixels.fillRect(0, 0, 1, 1);
      known.set(css, [...pixels.getImageData(0, 0, 1, 1).data].map((value) => value / 255));
    }
    return known.get(css);
  };
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const background = (node) => {
    for (; node; node = node.parentElement) {
      const [r, g, b, a] = color(getComputedStyle(node).backgroundColor);
      if (a > 0.9) return [r, g, b];
    }
    return [1, 1, 1];
  };
  const contrast = (node) => {
    const [light, dark] = [luminance(color(getComputedStyle(node).color).slice(0, 3)), luminance(background(node))].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };

  // Texts that are faint or tiny; a curve or an entrant that the reader has hidden may be faint.
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(node) || node.closest("script, style") || !shown(node)) continue;
    seen.add(node);
    const words = walker.currentNode.data.trim().slice(0, 60);
    if (parseFloat(getComputedStyle(node).fontSize) < 11) wrong.push(`tiny: ${words}`);
    if (!node.closest("svg, [aria-pressed=false]") && contrast(node) < 4.5) wrong.push(`faint: ${words}`);
  }

  // Boxes that hide a part of their text.
  for (const node of document.querySelectorAll("body *")) {
    if (node.closest("svg, .plot") || !shown(node)) continue;
    const style = getComputedStyle(node);
    const hides = [style.overflowX, style.overflowY].some((overflow) => ["hidden", "clip"].includes(overflow));
    if (hides && (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1))
      wrong.push(`hidden: ${node.textContent.trim().slice(0, 60)}`);
  }

  // Names and numbers of a chart that cover each other.
  for (const drawing of document.querySelectorAll("figure.chart svg")) {
    if (!shown(drawing)) continue;
    const texts = [...drawing.querySelectorAll("text")].filter((text) => text.textContent.trim());
    const boxes = texts.map((text) => text.getBoundingClientRect());
    for (let i = 0; i < boxes.length; i++)
      for (let j = 0; j < i; j++) {
        const across = Math.min(boxes[i].right, boxes[j].right) - Math.max(boxes[i].left, boxes[j].left);
        const down = Math.min(boxes[i].bottom, boxes[j].bottom) - Math.max(boxes[i].top, boxes[j].top);
        if (across > 2 && down > 3) wrong.push(`overlap: ${texts[j].textContent} / ${texts[i].textContent}`);
      }
  }
  return wrong;
}
