"use strict";
// What the pages cannot do without a script of their own; all else is plain HTML and htmx.
(() => {
  const root = document.documentElement;
  const busy = (region) =>
    document.hidden ||
    region.querySelector("input[type=checkbox]:checked") !== null ||
    (document.activeElement !== null && region.contains(document.activeElement) &&
      document.activeElement.matches("input:not([type=range], [type=checkbox]), textarea, select"));

  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    const dark = root.dataset.theme === "dark" ||
      (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `sqsdelay_theme=${root.dataset.theme}; Path=/; SameSite=Lax; Max-Age=31536000`;
  });

  document.addEventListener("change", (event) => {
    const all = event.target.closest("input[data-all]");
    if (!all) return;
    const name = all.dataset.all;
    all.form.querySelectorAll(`input[name="${name}"]`).forEach((box) => { box.checked = all.checked; });
  });

  document.addEventListener("change", (event) => {
    const form = event.target.form;
    const told = form?.querySelector("output[data-chosen]");
    if (!told) return;
    const count = form.querySelectorAll(`input[name="${told.dataset.chosen}"]:checked`).length;
    told.textContent = count ? `${count} chosen` : "";
  });

  // A region is not refreshed under somebody's hands, nor where nobody looks.
  document.addEventListener("htmx:beforeRequest", (event) => {
    const region = event.detail.elt;
    if (region.id === "live" && busy(region)) event.preventDefault();
  });

  // What was opened by hand stays open, and what was chosen while the answer was under way stays chosen.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status !== 200) return;
    event.detail.shouldSwap = event.detail.target.id !== "live" || !busy(event.detail.target);
    if (!event.detail.shouldSwap) return;
    since = new Date();
    offline.hidden = true;
    const opened = [...document.querySelectorAll("details[id][open]")].map((each) => each.id);
    if (!opened.length) return;
    const fresh = new DOMParser().parseFromString(event.detail.serverResponse, "text/html");
    opened.forEach((id) => fresh.getElementById(id)?.setAttribute("open", ""));
    event.detail.serverResponse = fresh.documentElement.outerHTML;
  });

  // A slider writes the stop it is at into its field; a number typed there moves the slider.
  document.querySelectorAll("input[data-for]").forEach((slider) => {
    const field = document.getElementById(slider.dataset.for);
    const stops = slider.dataset.stops.split(" ");
    slider.hidden = false;
    slider.addEventListener("input", () => { field.value = stops[slider.value]; });
    field.addEventListener("input", () => {
      const at = stops.indexOf(field.value.trim());
      if (at >= 0) { slider.value = at; return; }
      const over = stops.findIndex((stop) => Number(stop) >= Number(field.value));
      if (over >= 0) slider.value = over;
    });
  });

  const offline = document.getElementById("offline");
  let since = new Date();
  const told = (why) => {
    if (!offline.hidden) return;
    document.getElementById("offline-why").textContent = why;
    document.getElementById("offline-since").textContent = since.toLocaleTimeString();
    offline.hidden = false;
  };
  for (const name of ["htmx:sendError", "htmx:timeout", "htmx:responseError"]) {
    document.addEventListener(name, () => told("The console does not answer."));
  }
  // Where it is not refreshed, because something is chosen or typed, it says from when it is.
  setInterval(() => {
    const live = document.querySelector("#live[hx-get]");
    if (live && busy(live) && new Date() - since > 10000) told("Not refreshed under your hands.");
  }, 1000);
})();
