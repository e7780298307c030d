"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  // A link to a step opens it, and everything around it.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    if (target) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();

  // The times of a bar are read where it is pointed at, tapped or reached by key. The arrows go from bar to bar, so
  // that the tab key need not.
  const bars = all(".bar");
  const show = (event) => {
    const bar = event.currentTarget;
    bar.closest("section").querySelector(".reading").textContent = bar.getAttribute("aria-label");
  };
  bars.forEach((bar, at) => {
    bar.setAttribute("tabindex", at === 0 ? "0" : "-1");
    bar.addEventListener("pointerenter", show);
    bar.addEventListener("focus", show);
    bar.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const next = step && bars[at + step];
      if (!next) return;
      event.preventDefault();
      bar.setAttribute("tabindex", "-1");
      next.setAttribute("tabindex", "0");
      next.focus();
    });
  });

  // Search. What matches stays, and its log opens; each place of the words is marked without a change to the page.
  const form = document.getElementById("filter");
  if (!form) return;
  const words = document.getElementById("words");
  const only = document.getElementById("only");
  const found = document.getElementById("found");
  const passes = (step) => step.classList.contains("passed") || step.classList.contains("skipped");
  const steps = all("details.step[id]").map((step) => ({
    step,
    text: step.textContent.toLowerCase(),
    skill: (step.closest(".skill") || step).querySelector("h3"),
    above: document.querySelector('[data-step="' + step.id + '"]'),
    open: step.open,
  }));
  const MOST_MARKS = 2000;
  const mark = (root, wanted, ranges) => {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node && ranges.length < MOST_MARKS; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      if (text.length !== node.data.length) continue;
      for (let at = text.indexOf(wanted); at >= 0 && ranges.length < MOST_MARKS; at = text.indexOf(wanted, at + wanted.length)) {
        const range = new Range();
        range.setStart(node, at);
        range.setEnd(node, at + wanted.length);
        ranges.push(range);
      }
    }
  };
  const openAround = (step, ranges) => {
    step.open = true;
    for (const range of ranges) {
      for (let at = range.startContainer.parentElement; at && at !== step; at = at.parentElement) {
        if (at.tagName === "DETAILS") at.open = true;
      }
    }
  };
  const apply = () => {
    const wanted = words.value.trim().toLowerCase();
    const ranges = [];
    let number = 0;
    for (const { step, text, skill, above, open } of steps) {
      const inSkill = skill && skill.textContent.toLowerCase().includes(wanted);
      const hit = (!wanted || text.includes(wanted) || inSkill) && !(only.checked && passes(step));
      step.hidden = !hit;
      if (above) above.hidden = !hit;
      if (hit) number += 1;
      if (!wanted) step.open = open;
      if (hit && wanted && text.includes(wanted)) {
        const from = ranges.length;
        mark(step, wanted, ranges);
        const inside = ranges.slice(from).filter((range) => !range.startContainer.parentElement.closest(".step > summary"));
        if (inside.length) openAround(step, inside); else step.open = open;
      }
    }
    for (const skill of all(".skill")) {
      const rows = all(".step, .step-above", skill);
      skill.hidden = (wanted !== "" || only.checked) && rows.every((row) => row.hidden);
    }
    if (window.CSS && CSS.highlights) CSS.highlights.set("found", new Highlight(...ranges));
    const filtered = wanted || only.checked;
    found.textContent = filtered ? number + " of " + steps.length + (steps.length === 1 ? " step" : " steps") : "";
  };
  let waiting = 0;
  const soon = () => {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(apply);
  };
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
  words.addEventListener("input", soon);
  only.addEventListener("change", soon);
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof Element && event.target.closest("input, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      words.focus();
    }
  });
})();
