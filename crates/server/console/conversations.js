// Conversations, kept in this browser and nowhere else.

const PLACE = "paceline.conversations";
/** Browsers give a page some megabytes. */
const MOST = 100;
const TITLE_LENGTH = 48;

export class Conversations {
  constructor() {
    this.all = read();
  }

  find(id) {
    this.look();
    return this.all.find((talk) => talk.id === id);
  }

  /** A new one, which is kept once it has a message. */
  static make(settings) {
    return {
      id: crypto.getRandomValues(new Uint32Array(2)).join("-"),
      title: "",
      at: Date.now(),
      settings,
      messages: [],
    };
  }

  /** Keeps a conversation as it is now; whether there was room. */
  keep(talk) {
    this.look();
    talk.at = Date.now();
    talk.title ||= title(talk.messages.find(({ role }) => role === "user")?.content ?? "");
    this.all = [talk, ...this.all.filter(({ id }) => id !== talk.id)].slice(0, MOST);
    return this.write();
  }

  remove(id) {
    this.look();
    this.all = this.all.filter((talk) => talk.id !== id);
    this.write();
  }

  removeAll() {
    this.all = [];
    this.write();
  }

  /** Everything as a text to keep elsewhere. */
  export() {
    this.look();
    return JSON.stringify({ paceline_conversations: 1, conversations: this.all }, null, 2);
  }

  /** Another tab may have changed them. */
  look() {
    this.all = read(this.all);
  }

  /** Writes all; where there is too little room the oldest ones go first. */
  write() {
    while (true) {
      try {
        localStorage.setItem(PLACE, JSON.stringify(this.all));
        return true;
      } catch {
        if (this.all.length <= 1) return false;
        this.all.pop();
      }
    }
  }
}

/** Those that this browser has; `known` where it keeps nothing. */
function read(known = []) {
  try {
    const all = JSON.parse(localStorage.getItem(PLACE) ?? "[]");
    return Array.isArray(all) ? all.filter((talk) => talk && Array.isArray(talk.messages)) : [];
  } catch {
    return known;
  }
}

function title(text) {
  const line = text.trim().split("\n")[0];
  return line.length > TITLE_LENGTH ? `${line.slice(0, TITLE_LENGTH - 1)}…` : line;
}
