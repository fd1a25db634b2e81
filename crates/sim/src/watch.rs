//! An engine wrapper that checks what the stage promises to its engine. See [`stage::Engine`].

use std::cell::RefCell;

use protocol::{Open, Position};
use stage::{Cancel, Drafted, Engine, EngineError, EngineShape, Input, Sampler, Slot, Span, Want, Wish};

/// Passes everything on and keeps what was wrong with it.
pub(crate) struct Watched<E> {
    inner: E,
    /// Positions that each slot holds if the engine does what it is told; none after a failure, until it is emptied.
    held: Vec<Option<Position>>,
    /// What each row of the last call had to leave behind.
    asked: Vec<Want>,
    broken: RefCell<Vec<String>>,
}

impl<E: Engine> Watched<E> {
    pub(crate) fn new(inner: E) -> Self {
        let n_slots = usize::from(inner.shape().n_slots);
        Self { inner, held: vec![Some(Position(0)); n_slots], asked: Vec::new(), broken: RefCell::default() }
    }

    pub(crate) const fn inner(&self) -> &E {
        &self.inner
    }

    pub(crate) const fn inner_mut(&mut self) -> &mut E {
        &mut self.inner
    }

    /// The promises broken since the last time.
    pub(crate) fn take_broken(&mut self) -> Vec<String> {
        self.broken.take()
    }

    fn check(&mut self, spans: &[Span], input: Input<'_>) -> Result<(), String> {
        let shape = self.inner.shape();
        let Some(first) = spans.first() else { return Err("a call without spans".into()) };
        let n_rows = spans.iter().map(|span| span.n_rows).sum::<usize>();
        if n_rows > shape.max_rows {
            return Err(format!("{n_rows} rows in a call that takes {}", shape.max_rows));
        }
        for (i, span) in spans.iter().enumerate() {
            if span.n_rows == 0 || span.n_rows != first.n_rows {
                return Err(format!("spans of {} and {} rows in one call", first.n_rows, span.n_rows));
            }
            if usize::from(span.slot.0) != usize::from(first.slot.0) + i || span.slot.0 >= shape.n_slots {
                return Err(format!(
                    "span {i} is in slot {}, the first one in {}",
                    span.slot.0, first.slot.0
                ));
            }
            let held = self.held[usize::from(span.slot.0)];
            if Some(span.base) != held {
                return Err(format!("a span at {} in slot {}, which holds {held:?}", span.base, span.slot.0));
            }
            if span.base.plus(span.n_rows).0 > shape.context {
                return Err(format!("a span of {} rows at {} exceeds the context", span.n_rows, span.base));
            }
        }
        let (is_first, len, expected) = match input {
            Input::Tokens(tokens) => (true, tokens.len(), n_rows),
            Input::Rows(rows, tokens) if tokens.len() == n_rows => {
                (false, rows.len(), n_rows * shape.row_width)
            }
            Input::Rows(_, tokens) => (false, tokens.len(), n_rows),
        };
        if is_first != shape.is_first || len != expected {
            return Err(format!("an input of {len} values, expected {expected}"));
        }
        Ok(())
    }
}

impl<E: Engine> Engine for Watched<E> {
    fn shape(&self) -> &EngineShape {
        self.inner.shape()
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        if let Err(what) = self.check(spans, input) {
            self.broken.get_mut().push(what.clone());
            return Err(EngineError { reason: what });
        }
        for span in spans {
            self.held[usize::from(span.slot.0)] = Some(span.base.plus(span.n_rows));
        }
        self.asked.clear();
        self.asked.extend(spans.iter().flat_map(|span| std::iter::repeat_n(span.want, span.n_rows)));
        let computed = self.inner.run(spans, input, out);
        if computed.is_err() {
            let held = |span: &Span| self.inner.was_cancelled().then_some(span.base);
            spans.iter().for_each(|span| self.held[usize::from(span.slot.0)] = held(span));
        }
        computed
    }

    fn heed(&mut self, cancel: Cancel) {
        self.inner.heed(cancel);
    }

    fn was_cancelled(&self) -> bool {
        self.inner.was_cancelled()
    }

    fn logits(&self, row: usize) -> &[f32] {
        if self.asked.get(row) != Some(&Want::Logits) {
            self.broken.borrow_mut().push(format!("logits of row {row}, which nobody asked for"));
        }
        self.inner.logits(row)
    }

    fn hidden(&self, row: usize) -> &[f32] {
        if self.asked.get(row) != Some(&Want::Hidden) {
            self.broken.borrow_mut().push(format!("the hidden row {row}, which nobody asked for"));
        }
        self.inner.hidden(row)
    }

    fn draft(&mut self, wishes: Vec<Wish>) -> Result<Vec<Drafted>, EngineError> {
        let is_held =
            |wish: &&Wish| self.held[usize::from(wish.slot.0)].is_some_and(|held| held >= wish.position);
        let unheld =
            wishes.iter().find(|wish| !is_held(wish)).map(|wish| format!("{wish:?}, which is not held"));
        if let Some(what) = unheld {
            self.broken.get_mut().push(what.clone());
            return Err(EngineError { reason: what });
        }
        self.inner.draft(wishes)
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        let held = &mut self.held[usize::from(slot.0)];
        *held = match *held {
            None if len == Position(0) => Some(len),
            held => held.map(|held| held.min(len)),
        };
        self.inner.truncate(slot, len).inspect_err(|_| self.held[usize::from(slot.0)] = None)
    }

    fn save(&mut self, slot: Slot) -> Result<Vec<u8>, EngineError> {
        let Some(held) = self.held[usize::from(slot.0)].filter(|&held| held > Position(0)) else {
            let what = format!("a save of slot {}, which holds nothing for sure", slot.0);
            self.broken.get_mut().push(what.clone());
            return Err(EngineError { reason: what });
        };
        let mut bytes = self.inner.save(slot)?;
        bytes.extend(held.0.to_le_bytes());
        Ok(bytes)
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), EngineError> {
        let (bytes, held) = bytes.split_last_chunk().expect("only what was saved is loaded");
        self.held[usize::from(slot.0)] = Some(Position(u32::from_le_bytes(*held)));
        self.inner.load(slot, bytes).inspect_err(|_| self.held[usize::from(slot.0)] = None)
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        self.inner.sampler(open)
    }
}
