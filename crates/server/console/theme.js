// Light, dark, or as the system says.

import { byId, mark } from "./dom.js";

const PLACE = "paceline.theme";
const SIGNS = { system: "◐", light: "○", dark: "●" };
const CHOICES = Object.keys(SIGNS);

let choice = CHOICES.includes(localStorage.getItem(PLACE)) ? localStorage.getItem(PLACE) : "system";

function show() {
  mark(document.documentElement, "data-theme", choice === "system" ? null : choice);
  const button = byId("theme");
  button.textContent = SIGNS[choice];
  button.title = `Colours: ${choice}`;
  mark(button, "aria-label", `Colours: ${choice}`);
}

export function nextTheme() {
  choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
  localStorage.setItem(PLACE, choice);
  show();
}

export function startTheme() {
  byId("theme").addEventListener("click", nextTheme);
  show();
}
