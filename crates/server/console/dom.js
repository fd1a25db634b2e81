// Making and changing elements. Text only ever becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `el("p.note", { id: "x", onclick: f }, "text", child)`. A property that is null is left out. */
export function el(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElement(tag);
  if (classes.length > 0) made.className = classes.join(" ");
  return fill(made, properties, children);
}

/** The same of SVG. */
export function svg(name, properties = {}, ...children) {
  const [tag, ...classes] = name.split(".");
  const made = document.createElementNS(SVG, tag);
  if (classes.length > 0) made.setAttribute("class", classes.join(" "));
  return fill(made, properties, children);
}

function fill(made, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") made.toggleAttribute(name, value);
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Changes a text only if it is another one, so that selections and screen readers are left in peace. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute, or removes it if the value is null. */
export function mark(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/**
 * Makes the children of `parent` those of `items`, in order. A child lives as long as its item, so it keeps the focus.
 * `make(item)` gives an object with `root`; `update(made, item)` shows the item in it.
 */
export class List {
  constructor(parent, key, make, update) {
    Object.assign(this, { parent, key, make, update, made: new Map() });
  }

  show(items) {
    const keys = new Set(items.map(this.key));
    for (const [key, made] of this.made) {
      if (keys.has(key)) continue;
      made.root.remove();
      this.made.delete(key);
    }
    let at = this.parent.firstElementChild;
    for (const item of items) {
      const key = this.key(item);
      if (!this.made.has(key)) this.made.set(key, this.make(item));
      const made = this.made.get(key);
      this.update(made, item);
      if (made.root === at) at = at.nextElementSibling;
      else this.parent.insertBefore(made.root, at);
    }
  }
}
