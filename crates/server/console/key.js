// The API key: asked for when the server wants one, kept until the tab is closed.

import { byId, say } from "./dom.js";

const PLACE = "paceline.key";
/** What a header can carry; the server takes no other keys either. */
const IS_KEY = /^[\x21-\x7e]+$/;
const ADVICE = "A key has only letters, digits and signs of a US keyboard, and no spaces.";

export const storedKey = () => sessionStorage.getItem(PLACE);

let asking = null;

/** Resolves once there is another key than the one that was refused. Everybody who waits gets the same one. */
export function askKey(refused) {
  if (storedKey() !== refused) return Promise.resolve();
  asking ??= show(refused !== null).finally(() => {
    asking = null;
  });
  return asking;
}

function show(wasRefused) {
  const dialog = byId("key");
  const input = byId("key-value");
  if (wasRefused) say(byId("key-reason"), "The server does not know this key. Write another one.");
  input.value = "";
  input.setCustomValidity("");
  input.oninput = () => {
    const key = input.value.trim();
    input.setCustomValidity(key === "" || IS_KEY.test(key) ? "" : ADVICE);
  };
  return new Promise((resolve) => {
    // Without a key nothing works, so there is no way around it.
    dialog.oncancel = (event) => event.preventDefault();
    byId("key-form").onsubmit = () => {
      sessionStorage.setItem(PLACE, input.value.trim());
      resolve();
    };
    if (!dialog.open) dialog.showModal();
    input.focus();
  });
}
