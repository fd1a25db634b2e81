//! The pipeline against an honest tail under random interleavings, and against impossible verdicts.

mod random;
mod table;
mod tail;
