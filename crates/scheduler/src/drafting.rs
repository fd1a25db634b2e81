//! What somebody hears who drafts for requests elsewhere.

use protocol::Open;
use spec::TextChange;

/// In order for each request: its `Open`, changes of its text, and its `Close`. Requests without room for a guess, and
/// those that end in the queue, are not heard of.
///
/// Drafts come back by [`Scheduler::handle_draft`](crate::Scheduler::handle_draft), for the source `draft`.
#[derive(Clone, Debug, PartialEq)]
pub enum Drafting {
    /// A request begins. Its prompt is `history`; drafts may be prepared, but nobody waits for them before the first
    /// change of the text.
    Open(Box<Open>),
    /// Its text (committed tokens and those sent ahead) has become this; drafts for it are wanted.
    Text(TextChange),
    /// It is over.
    Close,
}
