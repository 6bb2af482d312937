// What every page does: "/" goes to the search field, arrows go from result to result.
"use strict";

(() => {
  const field = document.querySelector("#q, #url");
  const titles = [...document.querySelectorAll(".hit h2 a")];

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
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const fromField = event.target === field;
    if (event.key === "/" && field && !typing(event.target)) {
      event.preventDefault();
      field.focus();
      field.select();
    } else if (event.key === "ArrowDown" && titles.length && (fromField || titles.includes(event.target))) {
      event.preventDefault();
      step(1);
    } else if (event.key === "ArrowUp" && titles.includes(event.target)) {
      event.preventDefault();
      step(-1);
    } else if (event.key === "Escape" && fromField) {
      field.blur();
    }
  });
})();
