//! The text of a GBNF as rules.

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::Chars;

/// Parentheses within parentheses.
const MAX_DEPTH: usize = 100;
/// Repetitions that are written as a number.
const MAX_COUNT: u32 = 10_000;

/// One rule.
#[derive(Debug, PartialEq)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) body: Expr,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Any(Vec<Self>),
    All(Vec<Self>),
    /// At least so many, and at most.
    Repeat(Box<Self>, u32, Option<u32>),
    Rule(usize),
    Text(String),
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Expr {
    /// The rules that it names, some of them perhaps more than once.
    pub(super) fn names(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Self::Any(items) | Self::All(items) => Box::new(items.iter().flat_map(Self::names)),
            Self::Repeat(item, ..) => item.names(),
            Self::Rule(at) => Box::new(std::iter::once(*at)),
            Self::Text(_) | Self::Class { .. } => Box::new(std::iter::empty()),
        }
    }
}

/// What is wrong, and where.
#[derive(Debug, PartialEq)]
pub(super) struct ParseError {
    pub(super) line: usize,
    pub(super) what: String,
}

pub(super) fn rules(text: &str) -> Result<Vec<Rule>, ParseError> {
    let mut parser = Parser { rest: text.chars().peekable(), line: 1, names: BTreeMap::new(), depth: 0 };
    let mut bodies: BTreeMap<usize, Expr> = BTreeMap::new();
    parser.blanks(true);
    while parser.rest.peek().is_some() {
        let name = parser.name()?;
        let at = parser.number_of(name.clone());
        parser.blanks(false);
        for c in "::=".chars() {
            parser.expect(c)?;
        }
        parser.blanks(true);
        let body = parser.any(false)?;
        if bodies.insert(at, body).is_some() {
            return Err(parser.error(format!("the rule `{name}` is there twice")));
        }
        parser.blanks(true);
    }
    let missing = parser.names.iter().find(|(_, at)| !bodies.contains_key(at));
    if let Some((name, _)) = missing {
        let what = format!("there is no rule named `{name}`");
        return Err(parser.error(what));
    }
    let names: BTreeMap<usize, String> = parser.names.into_iter().map(|(name, at)| (at, name)).collect();
    Ok(names.into_values().zip(bodies.into_values()).map(|(name, body)| Rule { name, body }).collect())
}

struct Parser<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
    /// Rules by name, numbered as they were first named.
    names: BTreeMap<String, usize>,
    depth: usize,
}

impl Parser<'_> {
    fn error(&self, what: impl Into<String>) -> ParseError {
        ParseError { line: self.line, what: what.into() }
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.next();
        self.line += usize::from(c == Some('\n'));
        c
    }

    fn expect(&mut self, wanted: char) -> Result<(), ParseError> {
        match self.rest.peek().copied() {
            Some(c) if c == wanted => {
                self.next();
                Ok(())
            }
            Some(c) => Err(self.error(format!("expected `{wanted}`, found `{}`", c.escape_default()))),
            None => Err(self.error(format!("expected `{wanted}`, found the end"))),
        }
    }

    /// Passes over blanks and comments, and over line ends if they mean nothing here.
    fn blanks(&mut self, lines: bool) {
        while let Some(&c) = self.rest.peek() {
            match c {
                '#' => while self.rest.next_if(|&c| c != '\n').is_some() {},
                '\r' | '\n' if lines => {
                    self.next();
                }
                ' ' | '\t' => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<String, ParseError> {
        let mut name = String::new();
        while let Some(c) = self.rest.next_if(|&c| is_word(c)) {
            name.push(c);
        }
        if name.is_empty() {
            return Err(match self.rest.peek().copied() {
                Some(c) => self.error(format!("expected a rule's name, found `{}`", c.escape_default())),
                None => self.error("expected a rule's name, found the end"),
            });
        }
        Ok(name)
    }

    fn number_of(&mut self, name: String) -> usize {
        let next = self.names.len();
        *self.names.entry(name).or_insert(next)
    }

    /// Alternatives; within parentheses line ends mean nothing.
    fn any(&mut self, nested: bool) -> Result<Expr, ParseError> {
        let mut options = vec![self.all(nested)?];
        while self.rest.peek() == Some(&'|') {
            self.next();
            self.blanks(true);
            options.push(self.all(nested)?);
        }
        Ok(if options.len() == 1 { options.remove(0) } else { Expr::Any(options) })
    }

    fn all(&mut self, nested: bool) -> Result<Expr, ParseError> {
        let mut items = Vec::new();
        while let Some(&c) = self.rest.peek() {
            let item = match c {
                '"' => self.text()?,
                '[' => self.class()?,
                '.' => {
                    self.next();
                    Expr::Class { negated: false, ranges: vec![('\0', char::MAX)] }
                }
                '(' => self.group()?,
                '<' | '!' => return Err(self.error("token literals are not supported")),
                c if is_word(c) => {
                    let name = self.name()?;
                    Expr::Rule(self.number_of(name))
                }
                _ => break,
            };
            let item = self.repeated(item)?;
            items.push(item);
            self.blanks(nested);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Expr::All(items) })
    }

    fn group(&mut self) -> Result<Expr, ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error(format!("more than {MAX_DEPTH} parentheses within each other")));
        }
        self.expect('(')?;
        self.blanks(true);
        let inner = self.any(true)?;
        self.blanks(true);
        self.expect(')')?;
        self.depth -= 1;
        Ok(inner)
    }

    fn repeated(&mut self, item: Expr) -> Result<Expr, ParseError> {
        let mut item = item;
        while let Some(&c) = self.rest.peek() {
            let (least, most) = match c {
                '*' => (0, None),
                '+' => (1, None),
                '?' => (0, Some(1)),
                '{' => {
                    let bounds = self.bounds()?;
                    item = Expr::Repeat(Box::new(item), bounds.0, bounds.1);
                    continue;
                }
                _ => break,
            };
            self.next();
            item = Expr::Repeat(Box::new(item), least, most);
        }
        Ok(item)
    }

    /// `{2}`, `{2,}` or `{2,5}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), ParseError> {
        self.expect('{')?;
        let least = self.count()?.ok_or_else(|| self.error("expected a number after `{`"))?;
        let most = match self.rest.peek() {
            Some(',') => {
                self.next();
                self.count()?
            }
            _ => Some(least),
        };
        self.expect('}')?;
        if most.is_some_and(|most| most < least) {
            return Err(self.error("a repetition has its bounds the wrong way round"));
        }
        Ok((least, most))
    }

    fn count(&mut self) -> Result<Option<u32>, ParseError> {
        self.blanks(false);
        let mut digits = String::new();
        while let Some(c) = self.rest.next_if(char::is_ascii_digit) {
            digits.push(c);
        }
        self.blanks(false);
        if digits.is_empty() {
            return Ok(None);
        }
        let count = digits.parse().ok().filter(|&count| count <= MAX_COUNT);
        count.map(Some).ok_or_else(|| self.error(format!("a repetition of more than {MAX_COUNT}")))
    }

    fn text(&mut self) -> Result<Expr, ParseError> {
        self.expect('"')?;
        let mut text = String::new();
        while self.rest.peek() != Some(&'"') {
            text.push(self.char("a text")?);
        }
        self.next();
        Ok(if text.is_empty() { Expr::All(Vec::new()) } else { Expr::Text(text) })
    }

    fn class(&mut self) -> Result<Expr, ParseError> {
        self.expect('[')?;
        let negated = self.rest.next_if_eq(&'^').is_some();
        let mut ranges = Vec::new();
        while self.rest.peek() != Some(&']') {
            let low = self.char("a class")?;
            let mut high = low;
            if self.rest.next_if_eq(&'-').is_some() {
                match self.rest.peek() {
                    Some(']') => ranges.push(('-', '-')),
                    _ => high = self.char("a class")?,
                }
            }
            if high < low {
                return Err(self.error("a class has a range the wrong way round"));
            }
            ranges.push((low, high));
        }
        self.next();
        if ranges.is_empty() {
            return Err(self.error("a class without characters"));
        }
        Ok(Expr::Class { negated, ranges })
    }

    /// One character of a text or a class, escaped or not.
    fn char(&mut self, of: &str) -> Result<char, ParseError> {
        let c = self.next().ok_or_else(|| self.error(format!("{of} has no end")))?;
        if c != '\\' {
            return Ok(c);
        }
        let escaped = self.next().ok_or_else(|| self.error(format!("{of} has no end")))?;
        match escaped {
            'n' => Ok('\n'),
            'r' => Ok('\r'),
            't' => Ok('\t'),
            'x' => self.hex(2),
            'u' => self.hex(4),
            'U' => self.hex(8),
            '\\' | '"' | '[' | ']' | '-' | '^' | '/' => Ok(escaped),
            other => Err(self.error(format!("unknown escape `\\{}`", other.escape_default()))),
        }
    }

    fn hex(&mut self, n: usize) -> Result<char, ParseError> {
        let digits: String =
            std::iter::from_fn(|| self.rest.next_if(char::is_ascii_hexdigit)).take(n).collect();
        let code = (digits.len() == n).then(|| u32::from_str_radix(&digits, 16).ok()).flatten();
        code.and_then(char::from_u32)
            .ok_or_else(|| self.error(format!("an escape needs {n} hexadecimal digits of a character")))
    }
}

const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}
