// What every page does: "/" goes to the search field, arrows go from result to result, and the
// field is completed while one types.
"use strict";

(() => {
  const field = document.querySelector("#q, #url");
  const titles = [...document.querySelectorAll(".hit h2 a")];

  // --- Completions ---

  const list = document.querySelector("#completions");
  const WAIT_MS = 100;
  let typed = "";
  let chosen = -1;
  let timer = 0;
  let asked = null;

  function isOpen() {
    return Boolean(list) && !list.hidden;
  }

  // Completions that are on their way come too late.
  function expectNone() {
    clearTimeout(timer);
    if (asked) asked.abort();
  }

  function close() {
    expectNone();
    if (!list) return;
    list.hidden = true;
    chosen = -1;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  }

  function choose(place) {
    expectNone();
    const items = [...list.children];
    chosen = place < -1 ? items.length - 1 : place >= items.length ? -1 : place;
    items.forEach((item, at) => item.setAttribute("aria-selected", String(at === chosen)));
    if (chosen < 0) field.removeAttribute("aria-activedescendant");
    else field.setAttribute("aria-activedescendant", items[chosen].id);
    field.value = chosen < 0 ? typed : items[chosen].textContent;
  }

  function show(found) {
    const items = found.filter((words) => words !== typed.trim()).map((words, at) => {
      const item = document.createElement("li");
      item.id = `completion-${at}`;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", "false");
      const same = words.startsWith(typed.toLowerCase()) ? typed.length : 0;
      const rest = document.createElement("b");
      rest.textContent = words.slice(same);
      item.append(words.slice(0, same), rest);
      // Before the field loses the focus, which closes the list.
      item.addEventListener("mousedown", (event) => {
        if (event.button !== 0) return;
        event.preventDefault();
        field.value = words;
        field.form.requestSubmit();
      });
      return item;
    });
    list.replaceChildren(...items);
    chosen = -1;
    list.hidden = items.length === 0;
    field.setAttribute("aria-expanded", String(items.length > 0));
  }

  async function complete() {
    asked = new AbortController();
    try {
      const answer = await fetch(`/complete.json?q=${encodeURIComponent(typed)}`, { signal: asked.signal });
      if (answer.ok && document.activeElement === field) show(await answer.json());
    } catch (error) {
      // Without an answer one types on: a completion is only a help.
      if (error.name !== "AbortError") close();
    }
  }

  if (list) {
    // Without this script nothing is completed.
    field.setAttribute("role", "combobox");
    field.setAttribute("aria-autocomplete", "list");
    field.setAttribute("aria-controls", list.id);
    field.setAttribute("aria-expanded", "false");
    field.addEventListener("input", () => {
      typed = field.value;
      expectNone();
      timer = setTimeout(complete, WAIT_MS);
    });
    field.addEventListener("blur", close);
    // Who comes back finds the page as it was left.
    addEventListener("pagehide", close);
  }

  // --- Keys ---

  function typing(target) {
    return target instanceof HTMLInputElement || target.isContentEditable;
  }

  function step(by) {
    const here = titles.indexOf(document.activeElement);
    if (here + by < 0 && field) {
      field.focus();
      return;
    }
    const next = titles[Math.min(here + by, titles.length - 1)];
    if (next) next.focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const fromField = event.target === field;
    const down = event.key === "ArrowDown";
    if (event.key === "/" && field && !typing(event.target)) {
      event.preventDefault();
      field.focus();
      field.select();
    } else if (fromField && isOpen() && (down || event.key === "ArrowUp")) {
      event.preventDefault();
      choose(chosen + (down ? 1 : -1));
    } else if (fromField && isOpen() && event.key === "Escape") {
      event.preventDefault();
      field.value = typed;
      close();
    } else if (down && titles.length && (fromField || titles.includes(event.target))) {
      event.preventDefault();
      step(1);
    } else if (event.key === "ArrowUp" && titles.includes(event.target)) {
      event.preventDefault();
      step(-1);
    } else if (event.key === "Escape" && fromField) {
      event.preventDefault();  // Browsers empty the field.
      field.blur();
    }
  });
})();
