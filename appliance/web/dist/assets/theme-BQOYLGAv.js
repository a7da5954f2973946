// Runs before the first paint, for which the page's own script comes too late: the theme that this browser has chosen.
try {
  const { theme } = JSON.parse(localStorage.getItem("llama-appliance.prefs"));
  if (theme === "dark" || theme === "light") document.documentElement.classList.add(`scheme-${theme}`);
} catch {
  // nothing is stored, or nothing may be
}
