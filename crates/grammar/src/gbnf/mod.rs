//! llama.cpp's GBNF, translated into Lark.
//!
//! What does not recur becomes one terminal, which is matched exactly. Rules that recur stay rules, and between their
//! terminals the longest match wins: a grammar that relies on a shorter one allows less here than in llama.cpp.
//! Token literals are not translated.

mod parse;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use crate::GrammarError;
use parse::{Expr, Rule};

/// The grammar in Lark.
///
/// # Errors
/// If it is not GBNF, or uses what cannot be translated.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse::rules(text).map_err(|error| GrammarError::Unusable {
        reason: format!("line {} of the GBNF: {}", error.line, error.what),
    })?;
    Ok(Translation::new(&rules).finish(root(&rules)?))
}

fn root(rules: &[Rule]) -> Result<usize, GrammarError> {
    rules
        .iter()
        .position(|rule| rule.name == "root")
        .ok_or_else(|| GrammarError::Unusable { reason: "the GBNF has no rule named `root`".into() })
}

struct Translation<'a> {
    rules: &'a [Rule],
    /// Rules that lead back to themselves, or to one that does.
    recurring: BTreeSet<usize>,
    lark: String,
    /// Terminals made of parts of rules.
    n_parts: usize,
}

impl<'a> Translation<'a> {
    fn new(rules: &'a [Rule]) -> Self {
        let mut translation = Self { rules, recurring: BTreeSet::new(), lark: String::new(), n_parts: 0 };
        // A rule does not recur if everything that it names does not: take those away until nothing changes.
        let mut settled = BTreeSet::new();
        loop {
            let before = settled.len();
            for (at, rule) in rules.iter().enumerate() {
                if rule.body.names().all(|name| settled.contains(&name)) {
                    settled.insert(at);
                }
            }
            if settled.len() == before {
                break;
            }
        }
        translation.recurring = (0..rules.len()).filter(|at| !settled.contains(at)).collect();
        translation
    }

    fn finish(mut self, root: usize) -> String {
        let mut lines = format!("start: {}\n", self.name(root));
        for at in self.reachable(root) {
            let body = if self.recurring.contains(&at) {
                self.rule(&self.rules[at].body)
            } else {
                self.terminal(&self.rules[at].body)
            };
            let _ = writeln!(lines, "{}: {body}", self.name(at));
        }
        lines + &self.lark
    }

    fn reachable(&self, root: usize) -> BTreeSet<usize> {
        let (mut seen, mut ahead) = (BTreeSet::from([root]), vec![root]);
        while let Some(at) = ahead.pop() {
            ahead.extend(self.rules[at].body.names().filter(|&name| seen.insert(name)));
        }
        seen
    }

    fn name(&self, at: usize) -> String {
        if self.recurring.contains(&at) { format!("r{at}") } else { format!("T{at}") }
    }

    fn recurs(&self, expr: &Expr) -> bool {
        expr.names().any(|name| self.recurring.contains(&name))
    }

    /// In terms of rules; whatever does not recur becomes a terminal of its own.
    fn rule(&mut self, expr: &Expr) -> String {
        if !self.recurs(expr) {
            return self.part(std::slice::from_ref(expr));
        }
        match expr {
            Expr::Any(options) => {
                let options: Vec<String> = options.iter().map(|option| self.rule(option)).collect();
                format!("({})", options.join(" | "))
            }
            Expr::All(items) => {
                let mut parts = Vec::new();
                let mut rest = items.as_slice();
                while let Some(first) = rest.first() {
                    let n = rest.iter().take_while(|item| !self.recurs(item)).count();
                    if n == 0 {
                        parts.push(self.rule(first));
                        rest = &rest[1..];
                    } else {
                        parts.push(self.part(&rest[..n]));
                        rest = &rest[n..];
                    }
                }
                parts.join(" ")
            }
            Expr::Repeat(item, least, most) => format!("({}){}", self.rule(item), count(*least, *most)),
            Expr::Rule(at) => self.name(*at),
            Expr::Text(_) | Expr::Class { .. } => self.part(std::slice::from_ref(expr)),
        }
    }

    /// A terminal of consecutive expressions, by name.
    fn part(&mut self, items: &[Expr]) -> String {
        if let [Expr::Rule(at)] = items {
            return self.name(*at);
        }
        let body: Vec<String> = items.iter().map(|item| self.terminal(item)).collect();
        let name = format!("P{}", self.n_parts);
        self.n_parts += 1;
        let _ = writeln!(self.lark, "{name}: {}", body.join(" "));
        name
    }

    fn terminal(&self, expr: &Expr) -> String {
        match expr {
            Expr::Any(options) => {
                let options: Vec<String> = options.iter().map(|option| self.terminal(option)).collect();
                format!("({})", options.join(" | "))
            }
            Expr::All(items) if items.is_empty() => "\"\"".into(),
            Expr::All(items) => items.iter().map(|item| self.terminal(item)).collect::<Vec<_>>().join(" "),
            Expr::Repeat(item, least, most) => format!("({}){}", self.terminal(item), count(*least, *most)),
            Expr::Rule(at) => self.name(*at),
            Expr::Text(text) => serde_json::Value::from(text.as_str()).to_string(),
            Expr::Class { negated, ranges } => class(*negated, ranges),
        }
    }
}

fn count(least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (0, Some(1)) => "?".into(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    }
}

/// A regular expression for one character, every one of its ends written as a number.
fn class(negated: bool, ranges: &[(char, char)]) -> String {
    let mut text = String::from(if negated { "/[^" } else { "/[" });
    for (low, high) in ranges {
        let _ = write!(text, "\\u{{{:x}}}-\\u{{{:x}}}", u32::from(*low), u32::from(*high));
    }
    text.push_str("]/");
    text
}

#[cfg(test)]
mod tests;
