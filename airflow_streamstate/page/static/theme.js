// Light or dark, as Airflow's own pages are: they keep the choice in this origin's storage.
(() => {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const show = () => {
    let chosen = null;
    try { chosen = window.localStorage.getItem("theme"); } catch { /* storage may be blocked */ }
    const isDark = chosen === "dark" || (chosen !== "light" && system.matches);
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  };
  show();
  system.addEventListener("change", show);
  window.addEventListener("storage", show);
})();
