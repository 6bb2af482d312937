// The live page: asks for new samples each second, draws what the last minutes were like, and shows
// what the server says of now. The server has made the markup of that and escaped what is not ours.
"use strict";

(() => {
  const EVERY = 1000;
  const SPANS = [1, 2, 5].map((minutes) => minutes * 60000);
  const KEPT = 900;
  const SVG = "http://www.w3.org/2000/svg";
  const samples = [];
  const source = document.querySelector("[data-live]").dataset.live;
  let pointer = null;

  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const whole = (value) => number.format(Math.round(value));
  const rate = (value) => (value === 0 ? "0" : value < 10 ? value.toFixed(1) : whole(value));

  function span(seconds) {
    if (seconds === 0) return "0";
    if (seconds < 0.9995) return `${seconds < 0.00995 ? (seconds * 1000).toFixed(1) : Math.round(seconds * 1000)} ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    if (seconds < 99.5) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${whole(seconds / 86400)} days`;
  }

  const WRITE = { rate, span, whole, milliseconds: (ms) => span(ms / 1000) };

  // --- What is plotted: a figure names its series, and how a value is written. ---

  function plotOf(figure) {
    const { write, stacked, series } = figure.dataset;
    if (stacked === undefined) {
      const listed = JSON.parse(series);
      return { write: WRITE[write], series: listed.map((one) => ({ ...one, value: (s) => s[one.key] ?? s.more[one.key] })) };
    }
    const names = [...new Set(samples.flatMap((s) => Object.keys(s[stacked])))].sort();
    return {
      write: WRITE[write],
      stacked: true,
      series: names.map((name, place) => ({ name, color: 1 + (place % 6), value: (s) => s[stacked][name] || 0 })),
    };
  }

  // --- Drawing ---

  function element(name, attributes, parent) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent.append(made);
    return made;
  }

  function niceTop(value) {
    if (value <= 0) return 1;
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 4, 6, 8, 10].map((step) => step * power).find((top) => top >= value * 1.02) || 10 * power;
  }

  function draw(figure, now) {
    const plot = plotOf(figure);
    const svg = figure.querySelector("svg");
    const { width, height } = svg.getBoundingClientRect();
    if (width < 60) return;
    const left = 48, right = 4, top = 8, bottom = 20;
    // As long as there is something to show, five minutes at most.
    const SPAN = SPANS.find((one) => now - samples[0].at_ms <= one) || SPANS[SPANS.length - 1];
    const seen = samples.filter((s) => s.at_ms >= now - SPAN - 12000);
    const shown = seen.filter((s) => s.at_ms >= now - SPAN);
    const at = pointer && pointer.figure === figure && shown.length
      ? shown.reduce((best, s) => Math.abs(x(s) - pointer.x) < Math.abs(x(best) - pointer.x) ? s : best)
      : shown[shown.length - 1];

    function x(s) {
      return left + (1 - (now - s.at_ms) / SPAN) * (width - left - right);
    }

    let series = plot.series;
    if (plot.stacked) {
      const used = series.filter((one) => shown.some((s) => one.value(s)));
      series = used.length ? used : series.slice(0, 0);
    }
    const highest = Math.max(0, ...shown.map((s) => plot.stacked
      ? series.reduce((sum, one) => sum + one.value(s), 0)
      : Math.max(0, ...series.map((one) => one.value(s) ?? 0))));
    const ceiling = niceTop(highest);
    const y = (value) => top + (1 - value / ceiling) * (height - top - bottom);

    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    for (const share of [0, 0.5, 1]) {
      const level = Math.round(y(ceiling * share)) + 0.5;
      element("line", { class: "grid", x1: left, x2: width - right, y1: level, y2: level }, svg);
      if (share === 0 || highest > 0) {
        const label = element("text", { x: left - 6, y: level + 4, "text-anchor": "end" }, svg);
        label.textContent = share === 0 ? "0" : plot.write(ceiling * share);
      }
    }
    const steps = SPAN === SPANS[2] ? 5 : 4;
    for (let step = 0; step <= steps; step += 1) {
      const seconds = Math.round(((steps - step) * SPAN) / steps / 1000);
      const anchor = step === 0 ? "start" : step === steps ? "end" : "middle";
      const place = left + (step / steps) * (width - left - right);
      const label = element("text", { x: place, y: height - 4, "text-anchor": anchor }, svg);
      label.textContent = !seconds ? "now" : seconds % 60 ? `${seconds} s` : `${seconds / 60} min`;
    }

    const lines = element("g", {}, svg);
    let floor = seen.map(() => 0);
    for (const one of series) {
      if (plot.stacked) {
        const above = seen.map((s, place) => floor[place] + one.value(s));
        const upper = seen.map((s, place) => `${Math.max(left, x(s)).toFixed(1)},${y(above[place]).toFixed(1)}`);
        const lower = seen.map((s, place) => `${Math.max(left, x(s)).toFixed(1)},${y(floor[place]).toFixed(1)}`);
        if (seen.length > 1) {
          element("path", { class: `stack c${one.color}`, d: `M${upper.join("L")}L${lower.reverse().join("L")}Z` }, lines);
        }
        floor = above;
        continue;
      }
      for (const piece of pieces(seen, one.value)) {
        const points = piece.map((s) => `${Math.max(left, x(s)).toFixed(1)},${y(one.value(s)).toFixed(1)}`);
        const path = `M${points.join("L")}`;
        if (one.area !== false && points.length > 1) {
          const [first, last] = [points[0].split(",")[0], points[points.length - 1].split(",")[0]];
          element("path", { class: `area c${one.color}`, d: `${path}L${last},${y(0)}L${first},${y(0)}Z` }, lines);
        }
        element("path", { class: `line c${one.color}`, d: points.length > 1 ? path : `${path}h0.1` }, lines);
      }
    }
    if (pointer && pointer.figure === figure && at) {
      element("line", { class: "cursor", x1: x(at), x2: x(at), y1: top, y2: height - bottom }, svg);
    }
    legend(figure, plot, series, at);
  }

  // A line ends where there is no value: nothing is drawn across what is not known.
  function pieces(seen, value) {
    const found = [];
    let piece = [];
    for (const sample of seen) {
      const known = value(sample) !== null && value(sample) !== undefined;
      if (known) piece.push(sample);
      if (!known && piece.length) {
        found.push(piece);
        piece = [];
      }
    }
    if (piece.length) found.push(piece);
    return found;
  }

  function legend(figure, plot, series, at) {
    const keys = series.map((one) => {
      const key = document.createElement("span");
      key.className = `key c${one.color}`;
      const value = at ? one.value(at) : null;
      const words = document.createElement("b");
      words.textContent = `${one.name} ${value === null || value === undefined ? "–" : plot.write(value)}`;
      key.append(words);
      return key;
    });
    if (plot.stacked && !series.length) keys.push("nothing");
    figure.querySelector(".legend").replaceChildren(...keys);
  }

  function drawAll() {
    if (!samples.length) return;
    const now = samples[samples.length - 1].at_ms;
    for (const figure of document.querySelectorAll(".plot")) draw(figure, now);
  }

  // --- What the server says of now ---

  // Changes what is there into what is new, node by node: so nothing closes that was opened, and a
  // button that has the focus keeps it. Nodes with a data-key are the same wherever they stand.
  function renew(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    renewChildren(old, fresh);
  }

  function renewChildren(old, fresh) {
    const key = (node) => node?.dataset?.key;
    const known = new Map([...old.children].filter(key).map((node) => [key(node), node]));
    let place = old.firstChild;
    for (const node of [...fresh.childNodes]) {
      const same = key(node) ? known.get(key(node)) : place;
      if (!same || same.nodeName !== node.nodeName || key(same) !== key(node)) {
        old.insertBefore(document.importNode(node, true), place);
        continue;
      }
      if (same === place) place = place.nextSibling;
      else old.insertBefore(same, place);
      renew(same, node);
    }
    while (place) {
      const gone = place;
      place = place.nextSibling;
      gone.remove();
    }
  }

  // The server sends only parts that have changed: it is told the marks of those that are here.
  const marks = {};

  function show(parts) {
    for (const [name, { mark, text }] of Object.entries(parts)) {
      marks[name] = mark;
      const fresh = new DOMParser().parseFromString(text, "text/html");
      renewChildren(document.querySelector(`[data-part="${name}"]`), fresh.body);
    }
  }

  // A tab in the background tells as well how much is urgent.
  const title = document.title;
  function entitle() {
    const urgent = document.querySelectorAll(".verdict .bad").length;
    const words = urgent ? `(${urgent}) ${title}` : title;
    if (document.title !== words) document.title = words;
  }

  function trouble(words) {
    const place = document.querySelector("#trouble");
    place.hidden = !words;
    if (place.textContent !== words) place.textContent = words;
  }

  // --- Asking ---

  async function ask() {
    const newest = samples.length ? samples[samples.length - 1].number : 0;
    try {
      const answer = await fetch(`${source}?since=${newest}&have=${Object.values(marks).join()}`, { signal: AbortSignal.timeout(10000) });
      if (answer.status === 401) {
        location.reload();  // The session is over: the server asks for the token.
        return;
      }
      if (!answer.ok) throw new Error(`The server answered with status ${answer.status}.`);
      const { samples: fresh, parts, trouble: said } = await answer.json();
      if (fresh.length && fresh[0].number <= newest) samples.length = 0;
      samples.push(...fresh);
      samples.splice(0, samples.length - KEPT);
      trouble(said);
      show(parts);
      entitle();
      drawAll();
    } catch (error) {
      trouble(`No new numbers: ${error.message || "the server does not answer."} Trying again.`);
    }
    setTimeout(ask, document.hidden ? 10 * EVERY : EVERY);
  }

  for (const figure of document.querySelectorAll(".plot")) {
    const svg = figure.querySelector("svg");
    svg.addEventListener("pointermove", (event) => {
      pointer = { figure, x: event.clientX - svg.getBoundingClientRect().left };
      drawAll();
    });
    svg.addEventListener("pointerleave", () => {
      pointer = null;
      drawAll();
    });
  }
  addEventListener("resize", drawAll);
  ask();
})();
