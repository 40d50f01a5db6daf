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

  // What was opened by hand stays open.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const opened = [...document.querySelectorAll("details[id][open]")].map((each) => each.id);
    if (!opened.length || event.detail.xhr.status !== 200) return;
    const fresh = new DOMParser().parseFromString(event.detail.serverResponse, "text/html");
    opened.forEach((id) => fresh.getElementById(id)?.setAttribute("open", ""));
    event.detail.serverResponse = fresh.documentElement.outerHTML;
  });

  const offline = document.getElementById("offline");
  let since = new Date();
  const lost = () => {
    if (!offline.hidden) return;
    document.getElementById("offline-since").textContent = since.toLocaleTimeString();
    offline.hidden = false;
  };
  for (const name of ["htmx:sendError", "htmx:timeout", "htmx:responseError"]) {
    document.addEventListener(name, lost);
  }
  document.addEventListener("htmx:afterRequest", (event) => {
    if (!event.detail.successful) return;
    since = new Date();
    offline.hidden = true;
  });
})();
