//! A call written as a JSON object, read as it is written: its name as soon as it is known, its arguments as they come.

use serde_json::Value;

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fed {
    More,
    /// It was the object's last.
    End,
}

/// Reads one object. `{"name": …, "arguments": …}` (or `parameters`) in any order, other keys ignored.
#[derive(Debug, Default)]
pub(super) struct ObjectScan {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Of the outermost object: the key being read or read last, as JSON.
    key: String,
    /// Of the outermost object: reading a value.
    in_value: bool,
    /// Everything, until it is certain to be a call.
    raw: String,
    name: Option<String>,
    /// The value being read, if it is the name's.
    name_json: String,
    /// Arguments read and not taken.
    arguments: String,
    has_arguments: bool,
    arguments_done: bool,
    /// Some models write the arguments as a string that holds JSON.
    in_quotes: bool,
    begun: bool,
    /// The whole object is the arguments.
    only_arguments: bool,
}

impl ObjectScan {
    /// The name is known, and the object is the arguments.
    pub(super) fn of_arguments(name: String) -> Self {
        Self { name: Some(name), only_arguments: true, ..Self::default() }
    }

    pub(super) fn feed(&mut self, c: char) -> Fed {
        if !self.begun {
            self.raw.push(c);
        }
        if self.only_arguments {
            if self.depth > 0 || c == '{' {
                self.has_arguments = true;
                self.arguments.push(c);
            }
        } else {
            self.outermost(c);
        }
        self.nest(c);
        let ended = self.depth == 0 && c == '}' && !self.in_string;
        if ended { Fed::End } else { Fed::More }
    }

    /// Follows strings and brackets.
    fn nest(&mut self, c: char) {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match c {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// Sorts a character into the key or value of the outermost object that it belongs to.
    fn outermost(&mut self, c: char) {
        if self.depth == 0 {
            return;
        }
        let at_top = self.depth == 1 && !self.in_string;
        if at_top && matches!(c, ',' | '}') {
            self.end_value();
            self.in_value = false;
            self.key.clear();
        } else if at_top && c == ':' && !self.in_value {
            self.in_value = true;
        } else if !self.in_value {
            self.key.push(c);
        } else {
            match self.key.trim() {
                r#""name""# => self.name_json.push(c),
                r#""arguments""# | r#""parameters""# if !self.arguments_done => {
                    let blank = c.is_whitespace() && (!self.has_arguments || at_top);
                    if !blank {
                        self.in_quotes |= !self.has_arguments && c == '"';
                        self.has_arguments = true;
                        self.arguments.push(c);
                    }
                }
                _ => {}
            }
        }
    }

    fn end_value(&mut self) {
        match self.key.trim() {
            r#""name""# if self.name.is_none() => {
                self.name = serde_json::from_str(self.name_json.trim()).ok();
            }
            r#""arguments""# | r#""parameters""# => self.arguments_done = true,
            _ => {}
        }
    }

    pub(super) const fn is_begun(&self) -> bool {
        self.begun
    }

    /// The name, once it is certain that this is a call: with a name and the beginning of arguments, or with a name
    /// alone if `name_suffices`.
    pub(super) fn name_of_call(&mut self, name_suffices: bool) -> Option<String> {
        if self.name.is_none() {
            self.open_function();
        }
        self.name.clone().filter(|_| self.has_arguments || name_suffices)
    }

    /// OpenAI's own form, `{"type": "function", "function": {…}}`, is only looked into once it is whole.
    fn open_function(&mut self) {
        if self.depth > 0 {
            return;
        }
        let Ok(value) = serde_json::from_str::<Value>(&self.raw) else { return };
        let Some(function) = value.get("function") else { return };
        self.name = function.get("name").and_then(Value::as_str).map(str::to_owned);
        if let Some(arguments) = function.get("arguments").or_else(|| function.get("parameters")) {
            self.arguments = arguments.to_string();
            self.has_arguments = true;
            self.arguments_done = true;
        }
    }

    /// From now on this is a call.
    pub(super) fn begin(&mut self) {
        self.begun = true;
        self.raw.clear();
    }

    /// The JSON of arguments that came since the last time.
    pub(super) fn take_arguments(&mut self, ended: bool) -> String {
        if ended && !self.has_arguments {
            return "{}".into();
        }
        if self.in_quotes {
            if !self.arguments_done && !ended {
                return String::new();
            }
            let json = std::mem::take(&mut self.arguments);
            return serde_json::from_str(&json).unwrap_or(json);
        }
        std::mem::take(&mut self.arguments)
    }

    /// What was read, unless it is a call.
    pub(super) fn uncertain(&mut self) -> String {
        std::mem::take(&mut self.raw)
    }
}
